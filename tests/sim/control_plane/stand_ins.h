// What a member of a simulated job stands between, without a byte of data: ranks that train,
// capture and seal, and guards that become complete. They hold nothing and say all that real ones
// say.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "smp/core/node_options.h"
#include "smp/job/coordinator.h"
#include "smp/job/protection.h"

namespace unreft::sim {

// The ranks of one node, of which `index * ranks` is the first, and the slots that they capture to.
class StandInTrainers final : public smp::Coordinator::Node {
 public:
  StandInTrainers(const smp::NodeOptions& options, uint64_t index, uint64_t ranks);

  // Each rank of the node registers the same layers in attempt `attempt`.
  void Register(Attempt attempt);
  std::vector<smp::Asker> Askers(uint64_t request) const;

  void Claim(Version version, Rank rank);
  void Seal(Version version, Rank rank);
  // Of this node, that have sealed the version.
  std::vector<Rank> Sealed(Version version) const;
  uint64_t world() const { return options_.nodes * ranks_; }
  Rank rank(uint64_t i) const { return Rank{index_ * ranks_ + i}; }
  // Of the last decision that was carried out here.
  const std::optional<smp::JobDecision>& decision() const { return decision_; }
  Version committed() const { return committed_; }
  uint64_t abandoned() const { return abandoned_; }

  void CloseTimeline(absl::AnyInvocable<void()> done) override { done(); }
  void ReopenTimeline() override {}
  void Verify(Version, absl::AnyInvocable<void(absl::Status)> done) override {
    done(absl::OkStatus());
  }
  std::vector<smp::HeldSlab> Inventory() override;
  std::vector<smp::RottenSlab> RottenSlabs() override { return {}; }
  std::vector<smp::RegisteredTrainer> Registrations() override { return trainers_; }
  void OnRegistrationsChecked(const smp::RegistrationCheck&) override {}
  void OnDecision(const smp::JobDecision& decision) override;
  void OnCommitted(Version version) override { committed_ = version; }
  void OnAbandoned(Version version, const std::string& reason) override;
  void OnCaptureFrom(Version) override {}
  void OnReplicasDisagree(const std::string&) override {}
  void OnPins(const PinRecord&) override {}
  uint64_t RanksServed() override { return ranks_; }
  uint64_t RanksTraining() override { return ranks_; }
  uint64_t LivesRound() override { return 0; }  // they have ended whenever others ask
  void OnAttemptOver(uint64_t) override {}
  bool LacksMemory() override { return false; }
  void OnObstacle(const std::string&) override {}
  void OnStanding(const smp::Standing&) override {}
  void OnRefused(const absl::Status&) override {}

 private:
  const smp::NodeOptions& options_;
  const uint64_t index_;
  const uint64_t ranks_;
  std::vector<smp::RegisteredTrainer> trainers_;
  std::map<Version, std::vector<smp::HeldSlab>> held_;
  std::optional<smp::JobDecision> decision_;
  Version committed_;
  uint64_t abandoned_ = 0;
};

// A node's share in the protection of its group.
class StandInGuards final : public smp::Protection {
 public:
  explicit StandInGuards(Executor& executor) : executor_(executor) {}

  void Complete(smp::GuardHeld guard) { held_[guard.version] = std::move(guard); }

  void OnClaimed(Version) override {}
  void OnSealed(Version) override {}
  void Drop(Version version) override { held_.erase(version); }
  void OnCommitted(Version) override;
  void OnJobChange() override {}
  void OnRanksChange() override {}
  std::vector<smp::GuardHeld> Held() const override;
  std::map<Version, std::string> Failures() const override { return {}; }
  bool LacksMemory() const override { return false; }
  std::vector<std::string> DescribedManifests(Version) const override { return {}; }
  void Verify(Version, absl::AnyInvocable<void(absl::Status)> done) override {
    executor_.Post([done = std::move(done)]() mutable { done(absl::OkStatus()); });
  }

 private:
  Executor& executor_;
  std::map<Version, smp::GuardHeld> held_;
};

}  // namespace unreft::sim
