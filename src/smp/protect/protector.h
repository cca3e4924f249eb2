// Protector: a node's part in the erasure coding of its group (docs/design_notes.md, "Stripes with
// rotating roles").
//
// When all ranks of this node have begun to capture a version, the group is told how large the
// node's slab is. Once every member has said so, this node fills a guard for the version: it
// encodes the stripe that it aggregates and reads the other parities it is to hold. It serves what
// others read: parities it has encoded, parities it keeps, and what it keeps of others' slabs.
//
// The room protect is the erasure coding of a group: blocks to other nodes (slab_server.h), the
// guards (guard_store.h), and how one is filled (guarding.h). It includes desk and what desk does.
// Start here.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "meta/job_store.h"
#include "smp/core/shortage_retry.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"
#include "smp/job/protection.h"
#include "smp/protect/group_view.h"
#include "smp/protect/guard_store.h"
#include "smp/protect/guarding.h"
#include "smp/protect/slab_server.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Protector final : public Protection, public GuardedSlabs {
 public:
  // `on_change`: what is held is other than it was. All references outlive this; the server asks it
  // from now on.
  Protector(NodeState& state, Peers& peers, SlabServer& server, const meta::JobState& job,
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
  std::vector<GuardHeld> Held() const override;
  std::map<Version, std::string> Failures() const override;
  std::vector<std::string> ReplicaManifests(Version version) const override;
  void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) override;

  void ReadParity(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done) override;
  std::shared_ptr<const GuardRecord> RecordOf(Version version) override;
  // Makes the guard of a restored version anew, from the group's slabs as that record has them, as
  // soon as a guard is there for it. Does nothing when it is complete or being made. It is given up
  // when something else is committed. `replica_bytes`: by member, what its replica takes at most.
  void Remake(Version version, const GuardRecord& of_another,
              const std::vector<uint64_t>& replica_bytes);

  GuardStore& guards() { return guards_; }
  // What they take, or will for slots like these if the slabs of all members are as large.
  GuardMemory MemoryFor(std::span<const SlotNeeds> slabs) const;

 private:
  // A share in a restored version's protection, as the group's record has it.
  struct Remaking {
    GroupView group;
    GroupSlabs slabs;
    uint64_t replica_bytes = 0;
  };
  // A process of a member: sessions count those of one memory.
  struct Life {
    std::string incarnation;
    uint64_t session = 0;
    friend bool operator==(const Life&, const Life&) = default;
  };
  static Life LifeOf(const PresenceRecord& presence) {
    return {presence.incarnation(), presence.session()};
  }
  struct UnderWay {
    bool announced = false;                    // own slabs are known
    std::map<NodeSlot, AnnounceRequest> said;  // by every member, this one included
    std::map<NodeSlot, Life> told;             // to which process of the member
    std::set<NodeSlot> telling;
    bool provided = false;
    std::unique_ptr<Guarding> guarding;
    bool complete = false;
    bool lacks_guard = false;          // none was free for it
    std::optional<Remaking> remaking;  // of a restored version: nobody announces it
  };

  void RunRules();
  void Announce(Version version, UnderWay& under_way, const GroupView& group);
  void Tell(Version version, UnderWay& under_way, NodeSlot member);
  void StartGuarding(Version version, UnderWay& under_way, const GroupView& group);
  void StartRemaking(Version version, UnderWay& under_way);
  void StartWith(Version version, UnderWay& under_way, const GroupView& group,
                 const GroupSlabs& slabs, uint64_t replica_bytes, Guarding::Mode mode);
  void OnGuarded(Version version, uint64_t guard, Generation generation,
                 absl::StatusOr<std::shared_ptr<const GuardRecord>> result);
  void PassOver(Guarding& guarding);
  bool IsNamed(NodeSlot slot, const std::string& incarnation) const;
  bool HasReturned(const UnderWay& under_way) const;
  void BeginAgain(Version version, UnderWay& under_way);
  void ProvideAgain();
  Version KeepFrom();
  void Refuse(const std::string& reason);
  std::optional<AnnounceRequest> OwnSlabs(Version version, bool asked) const;
  UnderWay& Of(Version version);
  void Forget(Version version);
  bool IsOfInterest(Version version) const;
  bool IsGivenUp(Version version) const;

  void Serve();
  void ReadStoredParity(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done);
  absl::StatusOr<GuardRecord> OnRecord(Version version);
  std::shared_ptr<const ec::ErasureCode> CodeFor(ec::CodeShape shape);

  NodeState& state_;
  Peers& peers_;
  SlabServer& server_;
  const meta::JobState& job_;
  absl::AnyInvocable<void()> on_change_;
  GuardStore guards_;
  std::map<Version, UnderWay> versions_;
  // The newest that had to make room. What is told of it again, and of older ones, is no news: who
  // took it for news would tell all others, who have made room, too.
  Version passed_over_;
  std::vector<std::unique_ptr<Guarding>> cancelled_;  // until nothing of theirs is on its way
  std::vector<std::shared_ptr<const ec::ErasureCode>> codes_;  // few shapes: groups are alike
  std::string last_refusal_;
  uint64_t guard_bytes_told_ = 0;
  ShortageRetry shortage_;                                      // of guards
  Lifetime lifetime_;
};

}  // namespace unreft::smp
