#include "smp/node/memory_desk.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "smp/desk/node_memory.h"
#include "smp/job/cluster_records.h"
#include "smp/job/recorded.h"
#include "smp/node/json_text.h"

namespace unreft::smp {
namespace {

// Of slots, guards and staging: the node segment is there, and a rank's control page is small.
uint64_t NeededFor(const NodeOptions& options, const std::map<Rank, CatalogSlab>& slabs) {
  std::vector<RankNeeds> ranks;
  for (const auto& [rank, slab] : slabs) {
    ranks.push_back({SlotNeedsOf(slab, options), StateBytes(slab.manifest()->tensors)});
  }
  MemoryPlan plan = PlanMemory(options, ranks);
  plan.control_bytes = 0;
  return plan.Sum();
}

}  // namespace

MemoryDesk::MemoryDesk(NodeState& state, Member& member) : state_(state), member_(member) {}

MemoryDesk::~MemoryDesk() { state_.seams.executor.Cancel(timer_); }

void MemoryDesk::Answer(absl::AnyInvocable<void(AdminReply)> reply) {
  asking_.push_back(std::move(reply));
  if (asking_.size() > 1) return;
  deadline_ = state_.seams.executor.Now() + state_.options.call_timeout;
  Look();
}

void MemoryDesk::Look() {
  timer_ = TimerId::kNone;
  const Time now = state_.seams.executor.Now();
  if (now >= deadline_) return OnKnown(false);
  // The others tell it nothing before.
  const bool is_in = IsInJob();
  if (is_in && !LooksForLostSlabs()) return OnKnown(true);
  const Duration wait = is_in ? deadline_ - now : state_.options.read_retry;
  timer_ = state_.seams.executor.After(wait, [this] { Look(); });
}

bool MemoryDesk::IsInJob() const {
  if (member_.job().store_id.empty()) return false;  // not read yet
  if (member_.job().commit.value.world() == 0) return true;
  return Names(member_.job().view.value, state_.options.node,
               AsBytes(state_.record->incarnation()));
}

// Those of the committed version that this slot held, and that this memory does not.
bool MemoryDesk::LooksForLostSlabs() {
  if (member_.job().commit.value.world() == 0) return false;
  const CommitRecord& commit = member_.job().commit.value;
  JobDecision decision;
  decision.kind = DecisionKind::kRestored;
  decision.version = VersionOf(commit);
  for (recovery::SlabHolder& holder : HoldersOf(commit.holders())) {
    if (holder.slot != state_.options.node) continue;
    std::erase_if(holder.ranks, [&](Rank rank) {
      return std::ranges::any_of(state_.slots->OfRank(rank), [&](const Slot* slot) {
        return slot->version == decision.version && slot->phase != SlotPhase::kQuarantined;
      });
    });
    if (holder.ranks.empty()) continue;
    holder.lost = true;
    decision.holders.push_back(std::move(holder));
  }
  if (decision.holders.empty()) return false;
  // Nothing is planned by it.
  catalog_ = std::make_unique<RestoreCatalog>(state_, member_.peers(), member_.records(), decision,
                                              recovery::WantedBoxes{}, [this] {
                                                // Not in a callback of what goes.
                                                state_.seams.executor.Post(lifetime_.Bind([this] {
                                                  if (catalog_ != nullptr) OnKnown(true);
                                                }));
                                              });
  return true;
}

void MemoryDesk::OnKnown(bool known) {
  state_.seams.executor.Cancel(std::exchange(timer_, TimerId::kNone));
  const std::unique_ptr<RestoreCatalog> catalog = std::move(catalog_);
  const uint64_t existing = state_.memory->use().bytes;
  uint64_t needed = SumBytes(existing, SumBytes(state_.slots->guards().lacking_bytes,
                                                state_.slots->staging().lacking_bytes));
  if (catalog != nullptr && known) {
    needed = std::max(needed, NeededFor(state_.options, catalog->slabs()));
  }
  const absl::StatusOr<MemoryBudget> budget = state_.memory->Check(needed - existing);
  AdminReply answer{budget.status(), ""};
  if (budget.ok()) {
    answer.result = JsonText(nlohmann::json{{"needed", budget->needed},
                                            {"held", budget->existing},
                                            {"allowed", budget->allowed},
                                            {"limit", budget->limit},
                                            {"short", !budget->Fits()},
                                            {"known", known}});
  }
  for (auto& reply : std::exchange(asking_, {})) reply(answer);
}

}  // namespace unreft::smp
