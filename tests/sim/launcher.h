// Launcher: keeps a simulated job running: it starts all ranks of an attempt, and when one ends it
// stops the others, some of them late or not at all, and starts the next attempt.
//
// When a restore says "unrecoverable" it declares a fresh start, as an operator would, who gives up
// damaged copies, too, once nothing comes back any more; who else orders one does it by
// OrderFreshStart.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/sim/machine.h"
#include "tests/sim/trainer_process.h"

namespace unreft::sim {

class Launcher {
 public:
  // `homes`: the machines of the ranks, rank by rank and then from the beginning again. `like` is
  // what all trainers have in common.
  Launcher(std::vector<Machine*> homes, Random random, TrainerOptions like);
  ~Launcher();

  void Start();
  void AfterEvent();

  // kill -9 of one rank of the present attempt; false when none lives.
  bool KillOne();
  // Beside the present attempt, all of whose ranks train, another one begins for so long, as by a
  // launcher that somebody starts by mistake. False when they do not. Fails the run if it restores
  // while they live, unless `is_over` says that they commit nothing any more all the same.
  bool StartSecond(Duration how_long, std::function<bool()> is_over);
  // By an operator, at the daemon of that machine, whatever the job does.
  using OrderDone = absl::AnyInvocable<void(absl::Status)>;
  void OrderFreshStart(Machine& at, bool force, OrderDone done);
  // Has the next attempt restore that step; none: takes that back.
  void OrderRewind(Machine& at, std::optional<Step> to, OrderDone done);
  // On which nodes the job is to run, as `unreft resize` sends it; "": takes that back.
  void OrderResize(Machine& at, const std::string& order, OrderDone done);
  // All processes at once; nothing starts again by itself.
  void KillAll();
  // All processes at once, and their copies with them; the next attempt starts later.
  void KillForReboot();
  // Those on that machine at once, and their copies with them; the next attempt starts later.
  void KillOn(const Machine& machine);
  // All trainers are gone.
  bool Empty() const { return trainers_.empty(); }

  // Nothing of one rank runs for so long.
  void SuspendOne(Duration pause);

  // Where the ranks are from the next attempt on.
  void SetHomes(std::vector<Machine*> homes) { homes_ = std::move(homes); }

  // --- faults of the time ahead ---
  // The next attempt has so many ranks, one attempt long.
  void NextWorld(uint64_t world) { next_world_ = world; }
  // The ranks of the next attempt restore that step or an earlier one; none: any.
  void NextAtOrBefore(std::optional<Step> step) { next_at_or_before_ = step; }
  // In the next attempt some rank's replicated tensors are others than its replicas'.
  void NextGoesAstray() { next_goes_astray_ = true; }
  void set_late_kills(bool late) { late_kills_ = late; }
  // From now on a durable copy that cannot be loaded never will be.
  void GiveUpCopies() { gives_up_copies_ = true; }

  // Whether every rank of the present attempt trains.
  bool Trains() const;
  // Some trainer of the present attempt, or null.
  TrainerProcess* Any();
  std::vector<TrainerProcess*> Present();
  uint64_t attempts() const { return attempt_.value; }
  // Whether a second launcher has begun while the present attempt was there, which commits nothing
  // any more: the other may have taken its place.
  bool IsTakenOver() const { return second_began_in_ == attempt_ && is_over_(); }

 private:
  void StartAttempt();
  Attempt NumberFor(Attempt attempt);
  bool HasToWait(Attempt attempt) const;
  void StartRanks(Attempt attempt, uint64_t world);
  void StartRank(Attempt attempt, Rank rank, uint64_t world, std::shared_ptr<StepBarrier> barrier);
  void CheckSecond();
  void OnEnd(Attempt attempt);
  void StopRest();
  void KillLater(TrainerProcess& trainer, Duration delay);
  void OnExit(Attempt attempt, Rank rank, const absl::Status& status);
  bool IsGivenUp(const absl::Status& status) const;
  void DeclareFreshStart();
  void Order(Machine& at, AdminRequest request, OrderDone done);
  Duration MemoryLag();

  std::vector<Machine*> homes_;
  Machine& machine_;  // the first, where the launcher itself runs
  Random random_;
  const TrainerOptions like_;
  std::vector<std::unique_ptr<TrainerProcess>> trainers_;
  Attempt attempt_;     // the present one
  uint64_t begun_ = 0;  // attempts, of which each has a number of its own in the history
  std::map<Attempt, Attempt> told_;  // what they call themselves
  Attempt second_;                   // that was started beside
  Attempt second_began_in_;          // which was the present one then
  std::function<bool()> is_over_;    // of that one
  // How attempts are numbered. They have no order for anybody but us.
  enum class Numbers { kCounted, kAllTheSame, kDrawn };
  const Numbers numbers_;
  uint64_t world_;  // ranks of the job
  uint64_t next_world_ = 0;
  uint64_t present_world_ = 0;
  std::optional<Step> next_at_or_before_;
  std::optional<Step> present_at_or_before_;
  bool next_goes_astray_ = false;
  bool late_kills_ = true;
  bool gives_up_copies_ = false;
  bool stopping_ = false;
  bool stopped_ = false;
  bool wants_fresh_start_ = false;
  std::unique_ptr<Connector> admin_connector_;
  std::unique_ptr<Channel> admin_channel_;
  struct OrderLink {
    std::unique_ptr<Connector> connector;
    std::unique_ptr<Channel> channel;
  };
  std::map<std::string, OrderLink> orders_;                     // by what is ordered
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // tells late events we are gone
};

}  // namespace unreft::sim
