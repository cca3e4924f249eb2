// Protection: a node's share in the protection of its group, as the coordinator sees it. Protector
// is the one for groups; a job without parities has NoProtection.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "recovery/restorable.h"

namespace unreft::smp {

// A copy of another slot's manifests, CRC tables and extras of a version.
struct DescriptionHeld {
  NodeSlot of;
  std::vector<Rank> ranks;
  uint64_t world = 0;
};

struct GuardHeld {
  Version version;
  bool complete = false;  // all parity chunks and all descriptions that this node is to hold
  std::vector<DescriptionHeld> descriptions;
  // Which slabs went into it, as a digest, and by the members of the group.
  uint64_t coding = 0;
  std::vector<recovery::EncodedSlabs> encoded;
  uint32_t data_chunks = 0;  // k of that group
};

// Single-threaded on the node's executor.
class Protection {
 public:
  virtual ~Protection() = default;

  // A rank of this node has begun to capture the version.
  virtual void OnClaimed(Version version) = 0;
  // A slab of this node was sealed.
  virtual void OnSealed(Version version) = 0;
  // The version is given up, or can never be restored any more.
  virtual void Drop(Version version) = 0;
  // Everything older than what is committed may go when room is needed.
  virtual void OnCommitted(Version version) = 0;

  // The records of the job have changed: members may have come or gone, a timeline may be new.
  virtual void OnJobChange() = 0;
  // A rank of this node has come or gone: what the node holds may be all that it will hold.
  virtual void OnRanksChange() = 0;

  virtual std::vector<GuardHeld> Held() const = 0;
  // Versions that this node has no room to protect until they are over, and why.
  virtual std::map<Version, std::string> Failures() const = 0;
  // Whether guards that the group's newest versions need do not fit into this node's memory.
  virtual bool LacksMemory() const = 0;
  // The encoded manifests of other slots' slabs of the version, as far as they are held.
  virtual std::vector<std::string> DescribedManifests(Version version) const = 0;
  // Reads all that is held for the version again; what does not verify is held no more.
  virtual void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) = 0;
};

// Of a job without parities.
class NoProtection final : public Protection {
 public:
  explicit NoProtection(Executor& executor) : executor_(executor) {}

  void OnClaimed(Version) override {}
  void OnSealed(Version) override {}
  void Drop(Version) override {}
  void OnCommitted(Version) override {}
  void OnJobChange() override {}
  void OnRanksChange() override {}
  std::vector<GuardHeld> Held() const override { return {}; }
  std::map<Version, std::string> Failures() const override { return {}; }
  bool LacksMemory() const override { return false; }
  std::vector<std::string> DescribedManifests(Version) const override { return {}; }
  void Verify(Version, absl::AnyInvocable<void(absl::Status)> done) override {
    executor_.Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
  }

 private:
  Executor& executor_;
};

}  // namespace unreft::smp
