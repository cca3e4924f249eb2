// GuardStore: the guard segments of a node (base/guard_header.h), and which version each is for.
//
// It formats them, adopts complete ones that an earlier daemon process left, and hands them out.
// There are as many as a rank has slots: a version's parities live as long as its slabs.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/guard_header.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/segment_store.h"
#include "smp/core/node_options.h"
#include "smp/memory/memory_budget.h"
#include "smp/memory/memory_plan.h"
#include "smp/memory/segment_pool.h"

namespace unreft::smp {

enum class GuardPhase {
  kPopulating,  // its pages are being reserved
  kFree,
  kFilling,      // parities and descriptions are being collected
  kComplete,     // holds its share of a version's protection
  kQuarantined,  // does not verify
};

struct Guard {
  uint64_t id = 0;
  std::shared_ptr<Segment> segment;  // shared with the work pool and with reads on their way
  std::optional<GuardView> view;     // none when the header did not verify
  GuardPhase phase = GuardPhase::kPopulating;
  Generation generation;
  Version version;
  GuardGrant grant;                           // from kFilling on
  std::shared_ptr<const GuardRecord> record;  // from kComplete on
  uint64_t coding = 0;                        // of the record (CodingOf)
  std::string problem;
  uint32_t users = 0;    // reads by other nodes on their way, and verifying
  bool dropped = false;  // to be freed when nobody uses it any more
};

// Single-threaded on the node's executor.
class GuardStore {
 public:
  // `on_free`: a guard became free, in a turn of its own.
  GuardStore(SegmentPool& pool, Log& log, const NodeOptions& options, RandomId boot_id,
             RandomId incarnation, absl::AnyInvocable<void()> on_free);

  // Takes over complete guards and forgets those that were being filled. FailedPrecondition when a
  // segment is of a format that this daemon does not know.
  absl::Status Adopt();

  // Complete guards of these versions are never old.
  void Keep(std::set<Version> versions) { kept_ = std::move(versions); }

  // Makes the guards that are lacking for such needs: as many as a rank has slots, less those that
  // are too small and in use, and one at least. Those that are too small go when they are free or
  // not even populated, or complete and older than `keep_from`; those in quarantine go.
  // ResourceExhausted, with the numbers, when the budget does not allow.
  absl::Status Provide(const GuardNeeds& needs, Version keep_from);

  // A free guard that fits, claimed for the version; else the oldest complete one that is older
  // than `keep_from`; null when there is none now.
  Guard* Take(Version version, const GuardNeeds& needs, Version keep_from);

  // Those that are free, or complete and older than `keep_from`.
  void RemoveUnused(Version keep_from);

  // Everything is in place and sealed.
  void SetComplete(Guard& guard, std::shared_ptr<const GuardRecord> record);
  // Writes geometry and state word of a complete guard again as they were: they may have rotted,
  // and the daemon that adopts it begins with them, while this one never looks at them.
  void MendHeader(Guard& guard);
  void Free(Guard& guard);
  // Keeps a complete guard from being given to another version.
  void Use(Guard& guard) { ++guard.users; }
  void EndUse(uint64_t id, Generation generation);
  void Quarantine(Guard& guard, std::string problem);

  Guard* Find(uint64_t id, Generation generation);
  Guard* Complete(Version version);
  std::vector<Guard*> All();
  // What the guards take, and what `Provide` would take beside that now.
  GuardMemory MemoryFor(const GuardNeeds& needs, Version keep_from) const;

 private:
  absl::Status AdoptSegment(SegmentId id, std::shared_ptr<Segment> segment);
  absl::Status Make(const GuardNeeds& needs);
  GuardGeometry GeometryFor(uint64_t id, const GuardNeeds& needs) const;
  bool Fits(const Guard& guard, const GuardNeeds& needs) const;
  // Complete, and older than `keep_from`: it may be given to another version.
  bool IsOld(const Guard& guard, Version keep_from) const;
  struct Provision {
    std::vector<Guard*> going;  // too small and of no use, or in quarantine
    uint64_t fitting = 0;
    uint64_t too_small = 0;  // and in use
    uint64_t lacking = 0;
  };
  Provision ProvisionFor(const GuardNeeds& needs, Version keep_from) const;
  void Populate(Guard& guard);
  void Populated(Guard& guard, const absl::Status& status);
  void Remove(Guard& guard);

  SegmentPool& pool_;
  Log& log_;
  const NodeOptions& options_;
  const RandomId boot_id_;
  const RandomId incarnation_;
  absl::AnyInvocable<void()> on_free_;
  std::map<uint64_t, std::unique_ptr<Guard>> guards_;
  std::set<Version> kept_;
  Lifetime lifetime_;
};

// The record of a sealed guard, checked against its CRC. DataLoss.
absl::StatusOr<GuardRecord> ReadGuardRecord(GuardView view);

// Reads everything that a complete guard holds again. DataLoss naming the guard, what, and both
// CRCs. Thread-safe on a complete guard.
absl::Status VerifyGuard(GuardView view);

// Writes record, CRCs, seal and state word of a guard whose parities and CRC tables are in place.
// ResourceExhausted when the record does not fit.
absl::Status SealGuard(GuardView view, Generation generation, const GuardRecord& record);

}  // namespace unreft::smp
