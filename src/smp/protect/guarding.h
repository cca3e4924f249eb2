// Guarding: the work of filling one guard: a node's share in the protection of one version.
//
// A lane per parity chunk (lane.h) goes through the positions in order. What this node encodes for
// others the parity server hands on (parity_server.h). Beside the lanes the manifests, CRC tables
// and extras of the m members before this one are copied. A source that is still capturing answers
// when the block is there, so all of it runs along with the capture. Once everything is in place
// the guard is sealed.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/lifetime.h"
#include "smp/protect/coded_version.h"
#include "smp/protect/guard_activity.h"
#include "smp/protect/guard_store.h"
#include "smp/protect/guard_task.h"
#include "smp/protect/lane.h"
#include "smp/protect/parity_server.h"

namespace unreft::smp {

// Single-threaded on the node's executor; coding and CRCs run on the work pool. Destroyed only when
// it is idle, or with the transport's reads already ended.
// After it ended well it goes on handing parities on.
class Guarding {
 public:
  using Seams = GuardTask::Seams;
  using ReadDone = ParityServer::ReadDone;

  enum class Mode {
    kWithGroup,
    kAlone,   // no aggregator hands anything on
    kHandOn,  // the guard is complete; others may lack what this node aggregates
  };
  // `on_end`, once, in a turn of its own, unless kHandOn: the guard is sealed (ok, with its
  // record), it cannot be, or Cancelled.
  using OnEnd = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const GuardRecord>>)>;
  Guarding(Seams seams, const NodeOptions& options, std::shared_ptr<const CodedVersion> coded,
           Guard& guard, Mode mode, OnEnd on_end);

  void Start();

  // And has said so: it may be destroyed.
  bool ended() const { return end_told_; }

  // Another member wants its parity of the stripe that this node aggregates.
  void OnRead(const ReadRequest& request, uint64_t bytes, ReadDone done) {
    server_.OnRead(request, bytes, std::move(done));
  }

  // That member's memory is gone: what it was to hand on is encoded here, and nothing is kept for
  // it.
  void DoWithout(NodeSlot slot);
  bool DoesWithout(NodeSlot slot) const;

  // Ends the reads that are on their way; on_end follows when nothing touches the guard any more,
  // unless it was called before. Nothing is handed on any more.
  void Cancel();

  Guard& guard() { return task_.guard; }
  const CodedVersion& coded() const { return *task_.coded; }

 private:
  void RunRules();
  void End(absl::StatusOr<std::shared_ptr<const GuardRecord>> result);
  // `is_suspect`: what the member has sent before did not have its CRCs.
  void FetchDescription(uint32_t member, bool is_suspect);
  void Seal();

  const GuardTask task_;
  OnEnd on_end_;
  GuardActivity activity_;
  ParityServer server_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::set<uint32_t> gone_;                             // members
  std::map<uint32_t, std::vector<SlabDescription>> descriptions_;  // by member
  bool sealing_ = false;
  bool ended_ = false;
  bool end_told_ = false;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
