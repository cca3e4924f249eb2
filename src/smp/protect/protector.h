// Protector: a node's part in the erasure coding of its group (docs/design_notes.md, "Stripes with
// rotating roles").
//
// When all ranks of this node have begun to capture a version, the group is told how large the
// node's slab is (announcements.h). Once every member has said so, this node fills a guard for the
// version (guard_maker.h): it encodes the stripe that it aggregates and reads the other parities it
// is to hold. After a loss its share is made anew (remaking.h). It serves what others read:
// parities it has encoded, parities it keeps, and what it keeps of others' slabs
// (complete_guards.h).
//
// The room protect is the erasure coding of a group: blocks to other nodes (slab_server.h), the
// guards (guard_store.h), and how one is filled (guarding.h). It includes desk and what desk does.
// Start here.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/functional/function_ref.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "meta/job_store.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"
#include "smp/job/protection.h"
#include "smp/protect/announcements.h"
#include "smp/protect/complete_guards.h"
#include "smp/protect/group_view.h"
#include "smp/protect/guard_maker.h"
#include "smp/protect/guard_store.h"
#include "smp/protect/remaking.h"
#include "smp/protect/slab_server.h"

namespace unreft::smp {

// Single-threaded on the node's executor. Says by rules which versions are followed, and who of
// their groups still counts.
class Protector final : public Protection, public GuardedSlabs {
 public:
  // `on_change`: what is held is other than it was. All references outlive this; the server asks it
  // from now on.
  Protector(NodeState& state, Peers& peers, SlabServer& server, const meta::JobRecords& job,
            absl::AnyInvocable<void()> on_change);
  ~Protector() override;

  // Takes over the guards that an earlier process left.
  absl::Status Adopt();

  void OnClaimed(Version version) override;
  void OnSealed(Version version) override;
  void Drop(Version version) override;
  void OnCommitted(Version version) override;
  void OnJobChange() override { RunRules(); }
  void OnRanksChange() override { RunRules(); }
  std::vector<GuardHeld> Held() const override { return complete_.Held(); }
  std::map<Version, std::string> Failures() const override { return maker_.Failures(); }
  bool LacksMemory() const override;
  std::vector<std::string> DescribedManifests(Version version) const override {
    return complete_.DescribedManifests(version);
  }
  void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) override {
    complete_.Verify(version, std::move(done));
  }

  void ReadParity(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done) override;
  std::shared_ptr<const GuardRecord> RecordOf(Version version) override {
    return complete_.RecordOf(version);
  }
  // Makes the guard of a restored version anew, from the group's slabs as that record has them, as
  // soon as a guard is there for it. Does nothing when it is complete or being made. It is given up
  // when something else is committed. `description_bytes`: by member, what its description takes at
  // most.
  void Remake(Version version, const GuardRecord& of_another,
              const std::vector<uint64_t>& description_bytes);

  GuardStore& guards() { return guards_; }
  // What is found where guards are counted as those of a group with one parity less.
  bool FitsWithOneParityLess(absl::FunctionRef<bool()> fits);
  // What they take, or will for slots like these if the slabs of all members are as large.
  GuardMemory MemoryFor(std::span<const SlotNeeds> slabs);

 private:
  std::optional<GroupView> OwnGroup() const;
  void Serve();
  void RunRules();
  void Follow(Version version);
  void Forget(Version version);
  bool IsOfInterest(Version version) const;
  bool IsAbandoned(Version version) const;
  void FreeDeadGuards();
  void MakeGuard(Version version, const GroupView& group);
  void PassOver(Guarding& guarding);
  Guard* OutdatedGuard(Version version);
  bool LacksSlabs(Version version, const Guarding& guarding);
  bool IsOfOwnGroup(const Group& group) const;

  NodeState& state_;
  Peers& peers_;
  SlabServer& server_;
  const meta::JobRecords& job_;
  absl::AnyInvocable<void()> on_change_;
  uint32_t parities_less_ = 0;  // than the group has, while guards are counted
  GuardStore guards_;
  CompleteGuards complete_;
  GuardMaker maker_;
  Announcements announcements_;
  Remaking remaking_;
  // The newest that had to make room. What is told of it again, and of older ones, is no news: who
  // took it for news would tell all others, who have made room, too.
  Version passed_over_;
};

}  // namespace unreft::smp
