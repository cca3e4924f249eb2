#include "tests/sim/cluster/standstill_checker.h"

#include <algorithm>
#include <regex>

#include "base/format.h"

namespace unreft::sim {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(20);
// How long commits were waited for, for those who choose the bound.
constexpr std::pair<Duration, const char*> kWaits[] = {
    {std::chrono::seconds(1), "commits within 1 s of all being there"},
    {std::chrono::seconds(3), "commits within 3 s of all being there"},
    {std::chrono::seconds(6), "commits within 6 s of all being there"},
    {StandstillChecker::kCommitWithin, "commits within 10 s of all being there"}};

template <typename Id>
void AddNumbers(const std::string& list, std::set<Id>& ids) {
  static const std::regex kNumber("[0-9]+");
  for (std::sregex_iterator it(list.begin(), list.end(), kNumber), end; it != end; ++it) {
    ids.insert(Id{std::stoull(it->str())});
  }
}

template <typename Id>
void AddAll(const std::string& text, const std::regex& what, std::set<Id>& ids) {
  for (std::sregex_iterator it(text.begin(), text.end(), what), end; it != end; ++it) {
    AddNumbers((*it)[1].str(), ids);
  }
}

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

// By the words of the leader.
NamedMissing MissingBy(const std::string& obstacle) {
  static const std::regex kNodes(
      "node ([0-9]+(?:, [0-9]+)*)(?:, [0-9]+ more nodes)? is "
      "(?:lost|absent)");
  static const std::regex kRanks(
      "rank ([0-9]+(?:, [0-9]+)*)(?: and [0-9]+ more)? has not "
      "registered");
  NamedMissing missing;
  AddAll(obstacle, kNodes, missing.nodes);
  AddAll(obstacle, kRanks, missing.ranks);
  return missing;
}

Duration StandstillChecker::Since::Hold(bool holds, Duration now) {
  if (!holds) {
    since_.reset();
    return Duration{};
  }
  if (!since_) since_ = now;
  return now - *since_;
}

void StandstillChecker::AfterEvent() {
  if (cluster_.failed() || cluster_.now() < look_next_) return;
  look_next_ = cluster_.now() + kLookEvery;
  Look();
}

// A new attempt is decided without the nodes that are lost when it begins.
void StandstillChecker::FollowAttempt() {
  const uint64_t attempts = cluster_.launcher().attempts();
  const bool is_new = std::exchange(attempt_, attempts) != attempts;
  for (uint64_t number = 0; number < cluster_.options().node.nodes; ++number) {
    const NodeSlot slot{number};
    if (!cluster_.observer().IsLost(slot)) lost_.erase(slot);
    if (is_new && cluster_.observer().IsLost(slot)) lost_.insert(slot);
  }
}

bool StandstillChecker::IsDoneWithout(NodeSlot slot) const {
  return lost_.contains(slot) || cluster_.observer().IsLeftOut(slot);
}

void StandstillChecker::Look() {
  FollowAttempt();
  const bool store_answers = StoreAnswers();
  bool all_are_there = store_answers;
  nodes_there_for_.clear();
  for (uint64_t slot = 0; slot < cluster_.options().node.nodes; ++slot) {
    const bool is_there = store_answers && IsThere(NodeSlot{slot});
    const size_t place = cluster_.observer().machines().at(NodeSlot{slot})->slot.value;
    const std::pair daemon(place, cluster_.life(place));
    // Another process knows nothing of the ranks yet, however short its host was without one.
    if (std::exchange(daemons_[NodeSlot{slot}], daemon) != daemon) nodes_.erase(NodeSlot{slot});
    nodes_there_for_[NodeSlot{slot}] = nodes_[NodeSlot{slot}].Hold(is_there, cluster_.now());
    all_are_there = all_are_there && (is_there || IsDoneWithout(NodeSlot{slot}));
  }
  ranks_there_for_.clear();
  const bool is_taken_over = cluster_.launcher().IsTakenOver();
  for (const TrainerProcess* trainer : cluster_.launcher().Present()) {
    const auto home = cluster_.observer().SlotOf(trainer->machine());
    const bool is_home = home.has_value();
    const bool can = is_home && !is_taken_over && !lost_.contains(*home) && IsCommittable(*trainer);
    const Duration rank_for =
        ranks_[{trainer->attempt(), trainer->rank()}].Hold(can, cluster_.now());
    ranks_there_for_[trainer->rank()] =
        is_home ? std::min(rank_for, nodes_there_for_[*home]) : Duration{};
    all_are_there = all_are_there && can;
  }
  uint64_t refused = 0;
  for (const TrainerProcess* trainer : cluster_.launcher().Present()) refused += trainer->refused();
  const bool is_refused = std::exchange(refused_, refused) != refused;
  const bool trains = cluster_.launcher().Trains() && !is_refused;
  const uint64_t commits = cluster_.history().commits();
  const bool is_new = std::exchange(commits_, commits) != commits;
  if (is_new && armed_since_) {
    cluster_.Count("commits after all were there");
    for (const auto& [within, name] : kWaits) {
      if (cluster_.now() - *armed_since_ > within) continue;
      cluster_.Count(name);
      break;
    }
  }
  if (is_new) armed_since_.reset();
  CheckCommits(all_are_there && trains);
  if (!cluster_.failed()) CheckWords(is_new);
  if (!cluster_.failed()) CheckNames();
}

// Whether a daemon serves the slot, on the memory that the newest view names, and reaches all.
bool StandstillChecker::IsThere(NodeSlot slot) {
  const size_t place = cluster_.observer().machines().at(slot)->slot.value;
  smp::Node* const node = cluster_.node(place);
  if (node == nullptr || cluster_.daemon(place)->leaving()) return false;
  if (cluster_.daemon(place)->executor().suspended()) return false;
  if (cluster_.is_odd(place) || node->state().options.node != slot) return false;
  if (cluster_.machine(place).is_memory_short()) return false;
  for (const auto& [other, machine] : cluster_.observer().machines()) {
    const std::string address = cluster_.Address(machine->slot.value);
    if (!cluster_.network().AreLinked(cluster_.Address(place), address)) return false;
  }
  return true;
}

// It takes snapshots, and they are not void.
bool StandstillChecker::IsCommittable(const TrainerProcess& trainer) {
  const Version next{trainer.timeline(), Step{trainer.step() + 1}};
  return trainer.training() && trainer.registered() && cluster_.history().IsLive(next);
}

bool StandstillChecker::StoreAnswers() {
  if (!cluster_.store().ready() || cluster_.store().disk().bytes_max() != UINT64_MAX) return false;
  for (size_t place = 0; place < cluster_.places(); ++place) {
    if (cluster_.node(place) == nullptr) continue;
    if (!cluster_.store().Answers(cluster_.daemon(place)->executor())) return false;
  }
  return true;
}

uint64_t StandstillChecker::SlowestStep() {
  uint64_t slowest = UINT64_MAX;
  for (const TrainerProcess* trainer : cluster_.launcher().Present()) {
    slowest = std::min(slowest, trainer->step());
  }
  return slowest;
}

void StandstillChecker::CheckCommits(bool all_are_there) {
  if (!all_are_there) return armed_since_.reset();
  if (!armed_since_) {
    armed_since_ = cluster_.now();
    armed_at_ = SlowestStep();
    cluster_.Count("times that all were there");
  }
  const Duration waited = cluster_.now() - *armed_since_;
  if (waited <= kCommitWithin) return;
  const uint64_t steps = SlowestStep() - armed_at_;
  if (steps < kSnapshotsWithin * cluster_.options().trainer.snapshot_every) return;
  cluster_.Dump();
  cluster_.trace().Fail(
      "standstill: nothing is committed for {:.1f} s, and all nodes and ranks are there, and the "
      "store answers",
      Seconds(waited));
}

// Whoever trains on without protection hears why, in time.
void StandstillChecker::CheckWords(bool is_new) {
  const auto place = cluster_.LeaderPlace();
  const auto leader =
      place ? std::optional(std::pair(*place, cluster_.life(*place))) : std::nullopt;
  const bool is_other = std::exchange(leader_, leader) != leader;
  // A new leader waits for as long as the one before it did. One whose store was lost knows of no
  // version before it has written the job's records again.
  const bool knows =
      place && !cluster_.node(*place)->member()->job().timeline.value.chain().empty();
  if (is_new || is_other || !knows || !StoreAnswers() || !cluster_.launcher().Trains()) {
    return untold_since_.clear();
  }
  for (const TrainerProcess* trainer : cluster_.launcher().Present()) {
    const RankOf rank(trainer->attempt(), trainer->rank());
    const auto [since, begins] = untold_since_.try_emplace(rank, cluster_.now());
    const std::string told = trainer->told();
    if (!told.empty()) {
      const Duration waited = cluster_.now() - std::exchange(since->second, cluster_.now());
      if (waited > kLookEvery * 2) cluster_.Count("ranks told of a standstill");
      continue;
    }
    const Duration waited = cluster_.now() - since->second;
    if (waited <= kSaidWithin) continue;
    cluster_.Dump();
    cluster_.trace().Fail(
        "standstill: nothing is committed for {:.1f} s, and rank {} on machine {} is told of "
        "nothing that stands in the way",
        Seconds(waited), trainer->rank(), trainer->machine().slot);
    return;
  }
}

// Nobody is looked for in the wrong place.
void StandstillChecker::CheckNames() {
  for (size_t place = 0; place < cluster_.places(); ++place) {
    if (cluster_.node(place) == nullptr) continue;
    const std::string& obstacle = cluster_.node(place)->state().job_obstacle;
    if (obstacle.empty()) continue;
    const NamedMissing missing = MissingBy(obstacle);
    for (const NodeSlot slot : missing.nodes) {
      if (nodes_there_for_[slot] <= kSeenWithin) continue;
      cluster_.trace().Fail("standstill: node {} is said to be missing, and is there: '{}'", slot,
                            obstacle);
      return;
    }
    for (const Rank rank : missing.ranks) {
      if (ranks_there_for_[rank] <= kSeenWithin) continue;
      cluster_.trace().Fail("standstill: rank {} is said to be missing, and is there: '{}'", rank,
                            obstacle);
      return;
    }
  }
}

}  // namespace unreft::sim
