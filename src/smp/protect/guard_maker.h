// GuardMaker: gives versions guards, and has each filled with this node's share in the version's
// protection.
//
// A version that gets no guard is looked at again later: when guards become free, or after a while.
// What filled a guard goes on handing parities on until the version is forgotten.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "smp/core/shortage_retry.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"
#include "smp/protect/guard_share.h"
#include "smp/protect/guard_store.h"
#include "smp/protect/guarding.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class GuardMaker {
 public:
  // `on_change`: a guard was filled, or could not be, or a version lacks one or lacks it no more.
  // `run_rules`: what waits for something of this may go on. All references outlive this.
  GuardMaker(NodeState& state, Peers& peers, GuardStore& guards,
             absl::AnyInvocable<void()> on_change, absl::AnyInvocable<void()> run_rules);

  // Begins to fill a guard for its version, if one is to be had now. Where a complete one is there,
  // of an earlier life of this daemon, its parities are handed on alone.
  void MakeWithGroup(const GuardShare& share);
  // The same after a loss: nobody else is at it, and newer versions come first. Does nothing while
  // the version is being made.
  void MakeAnew(const GuardShare& share);

  // Of the version, filling or handing on; null while it has no guard.
  Guarding* Find(Version version) const;
  // The guard of the version was filled, or was complete before.
  bool IsComplete(Version version) const;
  // It could not be filled, and is not made any more.
  bool HasFailed(Version version) const;

  // Guards for the version are asked for once more, when it is made the next time.
  void ProvideAgain(Version version);
  // What is encoded for the version, or handed on, is given up, since there are other slabs of it.
  // It has a guarding. A guard that is complete stays so: it may be right, and counted on.
  void BeginAgain(Version version);
  // Its guard becomes free as soon as nothing touches it, unless it is complete.
  void Forget(Version version);

  // What the guards take, and what those would beside that for such needs.
  GuardMemory MemoryFor(const GuardNeeds& needs);

  // Whether guards of that shape could not be made for want of memory.
  bool LacksMemory(ec::CodeShape shape) const;

  // Of a group without parities: guards that are free, or of older versions than are kept, go.
  void RemoveUnused();

  // Versions that no guard is free for until something else is committed, and why.
  std::map<Version, std::string> Failures() const;

  // Logs why there is no protection, once.
  void Refuse(const std::string& reason);

 private:
  struct Making {
    bool is_anew = false;      // after a loss
    bool provided = false;     // guards for it were asked for
    std::optional<ec::CodeShape> refused;  // of those that there is no memory for
    bool lacks_guard = false;  // none was free for it
    std::unique_ptr<Guarding> guarding;
    bool complete = false;
    bool failed = false;
  };

  void Make(Making& making, const GuardShare& share, Guarding::Mode mode);
  void Provide(Making& making, const GuardShare& share);
  void KeepPinned();
  Version OldBelow() const;
  void OnEnd(Version version, uint64_t guard, Generation generation,
             absl::StatusOr<std::shared_ptr<const GuardRecord>> result);
  void LetGo(std::unique_ptr<Guarding> guarding);
  void EraseEnded();

  NodeState& state_;
  Peers& peers_;
  GuardStore& guards_;
  absl::AnyInvocable<void()> on_change_;
  absl::AnyInvocable<void()> run_rules_;
  std::map<Version, Making> makings_;
  std::vector<std::unique_ptr<Guarding>> over_;  // until nothing of theirs is on its way
  std::string last_refusal_;
  uint64_t guard_bytes_told_ = 0;
  ShortageRetry shortage_;  // of guards
  Lifetime lifetime_;
};

}  // namespace unreft::smp
