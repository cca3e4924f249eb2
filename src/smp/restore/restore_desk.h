// RestoreDesk: the daemon's side of a restore: it gathers the ranks that ask, tells each what was
// decided, and says where the bytes are. What lies on other nodes it has read or decoded, and this
// node's own lost slabs made anew.
//
// The room restore is the way from a decision to bytes: what the version consists of
// (restore_catalog.h), any block of it (block_reader.h), this node's lost slabs (slab_rebuilder.h),
// other nodes' blocks to the ranks (staged_blocks.h, staging.h), and what other nodes have decoded
// here (decoded_blocks.h). It includes all rooms but node. Start here.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "recovery/restore_planner.h"
#include "smp/desk/node_state.h"
#include "smp/memory/slot_verifier.h"
#include "smp/protect/protector.h"
#include "smp/restore/block_reader.h"
#include "smp/restore/decoded_blocks.h"
#include "smp/restore/restore_catalog.h"
#include "smp/restore/slab_rebuilder.h"
#include "smp/restore/staged_blocks.h"
#include "smp/restore/staging.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class RestoreDesk {
 public:
  // What it knows of the other nodes by.
  struct Cluster {
    Peers& peers;
    const meta::JobRecords& job;
    SlabServer& server;
    Protector* protector = nullptr;  // null without parities
    absl::AnyInvocable<void()> on_rebuilt;
  };

  explicit RestoreDesk(NodeState& state);
  ~RestoreDesk();

  // To be called before anything else; what it refers to outlives this.
  void Join(Cluster cluster);

  // --- frames ---
  void OnRestoreRequest(RankSession& session, const RestoreRequest& request);
  void OnExtrasRequest(RankSession& session, const ExtrasRequest& request);
  void OnPlanRequest(RankSession& session, PlanRequest request);
  void OnStagedDone(RankSession& session, const StagedDone& done);
  void OnRestoreDone(RankSession& session, const RestoreDone& done);
  void OnSessionEnded(RankSession& session);
  // A slot may have become free, for a slab that is to be rebuilt.
  void OnSlotChange();

  // --- of the coordinator ---
  std::vector<HeldSlab> Inventory() const;
  std::vector<RottenSlab> RottenSlabs() const;
  void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done);
  void OnDecision(const JobDecision& decision);
  void OnCommitted(Version version);

  // The rank's, the newest version first.
  std::vector<WireSlot> SealedSlotsOf(Rank rank) const;

 private:
  // A restore that was decided: of one version, for all ranks of this node.
  struct Restoring {
    uint64_t number = 0;
    JobDecision decision;
    std::unique_ptr<RestoreCatalog> catalog;
    // Once the catalog is ready.
    std::unique_ptr<BlockReader> reader;
    std::unique_ptr<SlabRebuilder> rebuilder;
    std::unique_ptr<StagedBlocks> blocks;  // once there is a staging area
    std::unique_ptr<DecodedBlocks> decoded;
    std::map<Rank, std::unique_ptr<Staging>> stagings;
  };

  struct Planning;  // of one rank's copies

  // All that ask in the attempt of that one, which may be none.
  void AskFor(const RankSession& like);
  bool Waits(const RankSession& session, const JobDecision& decision) const;
  bool AsksForDecision(const RankSession& session) const;
  void TellReplaced(const JobDecision& by);
  std::string TextOf(const JobDecision& decision);
  void Begin(const JobDecision& decision);
  void Retire();
  void OnCatalog();
  void OnRebuilt();
  void MakeShareAnew();
  void Remake(const GuardRecord& record);
  // Of a job: others are superseded, and may still hear of what they began.
  bool IsCurrent(uint64_t number) const {
    return restoring_ != nullptr && restoring_->number == number;
  }
  // What this node has not, nobody has.
  bool IsAlone() const { return state_.options.nodes == 1; }
  void AnswerWaiting();
  void Answer(RankSession& session);
  Decision AnswerFor(const RankSession& session, const JobDecision& decision) const;
  // How many ranks saved the version that is restored, once its catalog is ready.
  uint64_t SourceWorld() const { return restoring_->catalog->slabs().size(); }
  bool IsLostHere() const;
  bool IsRestoredByAsMany() const;
  // What that rank saved; null if the version is of another number of ranks.
  const CatalogSlab* OwnSlabOf(const RankSession& session) const;
  bool IsRestoring(const RankSession& session) const;
  static absl::Status NothingDecidedFor(const RankSession& session);
  absl::Status CheckIsThere(const RankSession& session, Version version) const;
  WireExtras ExtrasOf(Rank rank, const CatalogSlab& slab) const;
  Slot* SealedSlotOf(Version version, Rank rank) const;
  void StartPlanning(RankSession& session);
  void ComputePlan(RankSession& session, std::shared_ptr<Planning> planning);
  absl::Status GatherStored(const RankSession& session, Planning& planning);
  std::shared_ptr<recovery::RestoreTables> TablesOf(const std::map<Rank, WireSlot>& here) const;
  bool StillHas(const Planning& planning) const;
  void TryPlan(RankSession& session, std::shared_ptr<Planning> planning, Time deadline);
  void SendPlan(RankSession& session, const Plan& plan, std::span<const PlanPiece> pieces);
  static absl::Status NamePieces(const RankSession& session, const Planning& planning, Plan& plan);
  absl::Status Stage(RankSession& session, const Planning& planning, Plan& plan);
  absl::Status ProvideStaging(const StagingOrder& order);
  // Where other nodes' blocks lie; null without a staging area.
  StagedBlocks* Blocks();
  std::vector<uint32_t> TurnsOf(std::span<const PlanSource> sources) const;
  void EndStaging(RankSession& session);
  void DropDeadVersions();

  NodeState& state_;
  SlotVerifier verifier_;
  std::optional<Cluster> cluster_;
  std::unique_ptr<Restoring> restoring_;
  uint64_t restorings_ = 0;
  std::optional<Version> decided_;                   // what was to be restored last
  std::vector<std::unique_ptr<Restoring>> retired_;  // until nothing of theirs is on its way
  TimerId retired_timer_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
