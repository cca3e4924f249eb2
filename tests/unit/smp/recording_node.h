// A node as its coordinator sees it: what it was told, and what it says that it holds.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "smp/job/coordinator.h"

namespace unreft::smp {

struct RecordingNode final : Coordinator::Node {
  void CloseTimeline(absl::AnyInvocable<void()> done) override {
    told.emplace_back("close");
    closing.push_back(std::move(done));
  }
  void ReopenTimeline() override {
    told.emplace_back("reopen");
    ++reopened;
  }
  void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) override {
    verified.push_back(version);
    if (verifies) return done(absl::OkStatus());
    verifying.push_back(std::move(done));
  }
  std::vector<HeldSlab> Inventory() override { return held; }
  std::vector<RottenSlab> RottenSlabs() override { return rotten; }
  std::vector<RegisteredTrainer> Registrations() override { return registered; }
  void OnRegistrationsChecked(const RegistrationCheck& check) override { checks.push_back(check); }
  void OnDecision(const JobDecision& decision) override {
    told.emplace_back("decision");
    decisions.push_back(decision);
  }
  void OnCommitted(Version version) override {
    if (on_committed) on_committed();
    told.emplace_back("commit");
    committed.push_back(version);
  }
  void OnAbandoned(Version version, const std::string& reason) override {
    told.emplace_back("abandoned");
    abandoned.push_back({version, reason});
  }
  void OnCaptureFrom(Version first) override { capture_from = first; }
  void OnReplicasDisagree(const std::string& what) override { disagreements.push_back(what); }
  void OnPins(const PinRecord& record) override {
    told.emplace_back("pins");
    pins.push_back(record);
  }
  uint64_t RanksServed() override { return ranks; }
  uint64_t RanksTraining() override { return training; }
  uint64_t LivesRound() override { return lives_round; }
  void OnAttemptOver(uint64_t round) override { over_round = round; }
  bool LacksMemory() override { return false; }
  void OnObstacle(const std::string& what) override { obstacle = what; }
  void OnStanding(const Standing& standing) override { standings.push_back(standing); }
  void OnRefused(const absl::Status& why) override { refused.push_back(why); }

  struct Abandoned {
    Version version;
    std::string reason;
  };
  std::vector<std::string> told;  // of what the records say, in order
  std::function<void()> on_committed;
  Version capture_from;
  std::vector<HeldSlab> held;
  std::vector<RottenSlab> rotten;
  std::vector<RegisteredTrainer> registered;
  std::vector<RegistrationCheck> checks;
  std::vector<absl::AnyInvocable<void()>> closing;
  int reopened = 0;
  std::vector<Version> verified;
  bool verifies = true;
  std::vector<absl::AnyInvocable<void(absl::Status)>> verifying;  // as it does not
  std::vector<JobDecision> decisions;
  std::vector<Version> committed;
  std::vector<Abandoned> abandoned;
  std::vector<std::string> disagreements;
  std::vector<PinRecord> pins;
  uint64_t ranks = 0;
  uint64_t training = 0;  // of them
  uint64_t lives_round = 0;
  uint64_t over_round = 0;
  std::string obstacle;
  std::vector<Standing> standings;
  std::vector<absl::Status> refused;
};

}  // namespace unreft::smp
