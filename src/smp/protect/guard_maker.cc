#include "smp/protect/guard_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {

GuardMaker::GuardMaker(NodeState& state, Peers& peers, GuardStore& guards,
                       absl::AnyInvocable<void()> on_change, absl::AnyInvocable<void()> run_rules)
    : state_(state),
      peers_(peers),
      guards_(guards),
      on_change_(std::move(on_change)),
      run_rules_(std::move(run_rules)),
      // Versions that have no guard: nobody tells when there is memory that was lacking.
      shortage_(state.seams.executor, state.options.memory_retry, [this] {
        for (const auto& [version, making] : makings_) ProvideAgain(version);
        run_rules_();
      }) {}

Guarding* GuardMaker::Find(Version version) const {
  const auto it = makings_.find(version);
  return it == makings_.end() ? nullptr : it->second.guarding.get();
}

bool GuardMaker::IsComplete(Version version) const {
  const auto it = makings_.find(version);
  return it != makings_.end() && it->second.complete;
}

bool GuardMaker::HasFailed(Version version) const {
  const auto it = makings_.find(version);
  return it != makings_.end() && it->second.failed;
}

void GuardMaker::ProvideAgain(Version version) {
  const auto it = makings_.find(version);
  if (it != makings_.end() && it->second.guarding == nullptr) it->second.provided = false;
}

void GuardMaker::MakeWithGroup(const GuardShare& share) {
  const Version version = share.coded->version;
  const bool is_complete = guards_.Complete(version) != nullptr;
  Make(makings_[version], share,
       is_complete ? Guarding::Mode::kHandOn : Guarding::Mode::kWithGroup);
}

void GuardMaker::MakeAnew(const GuardShare& share) {
  const Version version = share.coded->version;
  Making& making = makings_[version];
  if (making.guarding != nullptr) return;
  making.is_anew = true;
  // What is too small for this one may be right for newer ones.
  making.provided |= std::any_of(makings_.begin(), makings_.end(), [&](const auto& other) {
    return other.first > version && other.second.provided;
  });
  Make(making, share, Guarding::Mode::kAlone);
}

void GuardMaker::Make(Making& making, const GuardShare& share, Guarding::Mode mode) {
  const Version version = share.coded->version;
  const GuardNeeds needs = share.Needs();
  making.complete = mode == Guarding::Mode::kHandOn;
  KeepPinned();
  if (!making.complete && !std::exchange(making.provided, true)) Provide(making, share);
  Guard* guard =
      making.complete ? guards_.Complete(version) : guards_.Take(version, needs, OldBelow());
  if (std::exchange(making.lacks_guard, guard == nullptr) != (guard == nullptr)) on_change_();
  if (guard == nullptr) return shortage_.Arm();
  making.guarding =
      std::make_unique<Guarding>(Guarding::Seams{state_.seams.executor, state_.seams.pool, peers_,
                                                 state_.seams.log, *state_.tiles},
                                 state_.options, share.coded, *guard, mode,
                                 [this, version, id = guard->id, generation = guard->generation](
                                     absl::StatusOr<std::shared_ptr<const GuardRecord>> result) {
                                   OnEnd(version, id, generation, std::move(result));
                                 });
  making.guarding->Start();
}

void GuardMaker::Provide(Making& making, const GuardShare& share) {
  const absl::Status status = guards_.Provide(share.Needs(), OldBelow());
  making.refused.reset();
  if (!status.ok()) {
    if (!making.is_anew) making.refused = share.coded->group.shape;
    return Refuse(std::string(status.message()));
  }
  const uint64_t bytes = state_.memory->use(SegmentKind::kGuard).bytes;
  if (std::exchange(guard_bytes_told_, bytes) == bytes) return;
  state_.seams.log.Info("memory budget: {} guards take {} bytes of shared memory",
                        guards_.All().size(), bytes);
}

bool GuardMaker::LacksMemory(ec::CodeShape shape) const {
  return std::ranges::any_of(makings_, [&](const auto& of_version) {
    const Making& making = of_version.second;
    return making.guarding == nullptr && making.refused == shape;
  });
}

GuardMemory GuardMaker::MemoryFor(const GuardNeeds& needs) {
  KeepPinned();
  return guards_.MemoryFor(needs, OldBelow());
}

void GuardMaker::RemoveUnused() {
  KeepPinned();
  guards_.RemoveUnused(OldBelow());
}

void GuardMaker::KeepPinned() {
  std::set<Version> pinned;
  if (state_.pins) {
    for (const Pin& pin : state_.pins->pins()) pinned.insert(VersionOf(pin));
  }
  guards_.Keep(std::move(pinned));
}

// Guards of older versions may be given away. Before it is known what is pinned, none are.
Version GuardMaker::OldBelow() const {
  const bool are_pins_known = state_.pins || state_.options.pins == 0;
  return are_pins_known ? state_.record->committed() : Version{};
}

void GuardMaker::OnEnd(Version version, uint64_t id, Generation generation,
                       absl::StatusOr<std::shared_ptr<const GuardRecord>> result) {
  Guard* guard = guards_.Find(id, generation);
  const auto it = makings_.find(version);
  const bool is_wanted = it != makings_.end() && it->second.guarding != nullptr &&
                         guard != nullptr && &it->second.guarding->guard() == guard;
  if (result.ok() && is_wanted) {
    it->second.complete = true;
    guards_.SetComplete(*guard, *std::move(result));
  } else {
    if (!result.ok() && !absl::IsCancelled(result.status())) {
      Refuse(fmt::format("version {}: {}", version, result.status().message()));
    }
    if (guard != nullptr) guards_.Free(*guard);
    if (is_wanted) {
      it->second.failed = true;
      LetGo(std::move(it->second.guarding));
    } else {
      EraseEnded();
    }
  }
  on_change_();
  run_rules_();
}

void GuardMaker::BeginAgain(Version version) {
  Making& making = makings_.at(version);
  LetGo(std::move(making.guarding));
  making.complete = false;
  making.provided = false;
}

void GuardMaker::Forget(Version version) {
  const auto it = makings_.find(version);
  if (it == makings_.end()) return;
  // What fills a guard ends first; the rest of it follows with OnEnd.
  if (it->second.guarding != nullptr) LetGo(std::move(it->second.guarding));
  makings_.erase(it);
}

void GuardMaker::LetGo(std::unique_ptr<Guarding> guarding) {
  guarding->Cancel();
  over_.push_back(std::move(guarding));
  EraseEnded();
}

void GuardMaker::EraseEnded() {
  // Not inside the call of one of them.
  state_.seams.executor.Post(lifetime_.Bind(
      [this] { std::erase_if(over_, [](const auto& guarding) { return guarding->ended(); }); }));
}

// A guard is free again once a version commits, and a newer one makes way for no older: of two
// versions of which each had the last guard of some node, neither was ever complete.
std::map<Version, std::string> GuardMaker::Failures() const {
  std::map<Version, std::string> failures;
  const std::vector<Guard*> guards = guards_.All();
  for (const auto& [version, making] : makings_) {
    if (!making.lacks_guard || making.is_anew) continue;
    const auto newer = std::ranges::find_if(guards, [&](const Guard* guard) {
      const bool is_taken =
          guard->phase == GuardPhase::kFilling || guard->phase == GuardPhase::kComplete;
      return is_taken && !guard->dropped && guard->version > version;
    });
    if (newer == guards.end()) continue;
    failures[version] = fmt::format("no guard is free, there are {}, one of them for version {}",
                                    guards.size(), (*newer)->version);
  }
  return failures;
}

void GuardMaker::Refuse(const std::string& reason) {
  if (reason == last_refusal_) return;
  last_refusal_ = reason;
  state_.seams.log.Error("no protection: {}", reason);
}

}  // namespace unreft::smp
