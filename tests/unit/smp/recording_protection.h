// A node's protection as its coordinator sees it: what it was told, and what it says that it holds.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "smp/job/protection.h"

namespace unreft::smp {

struct RecordingProtection final : Protection {
  void OnClaimed(Version version) override { claimed.push_back(version); }
  void OnSealed(Version version) override { sealed.push_back(version); }
  void Drop(Version version) override { dropped.push_back(version); }
  void OnCommitted(Version version) override { committed.push_back(version); }
  void OnJobChange() override { ++job_changes; }
  void OnRanksChange() override {}
  std::vector<GuardHeld> Held() const override { return held; }
  std::map<Version, std::string> Failures() const override { return failures; }
  bool LacksMemory() const override { return lacks_memory; }
  std::vector<std::string> DescribedManifests(Version) const override {
    return described_manifests;
  }
  void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) override {
    verified.push_back(version);
    done(problem);
  }

  std::vector<GuardHeld> held;
  std::map<Version, std::string> failures;
  std::vector<std::string> described_manifests;
  absl::Status problem;  // that verifying finds
  std::vector<Version> claimed;
  std::vector<Version> sealed;
  std::vector<Version> dropped;
  std::vector<Version> committed;
  std::vector<Version> verified;
  int job_changes = 0;
  bool lacks_memory = false;
};

}  // namespace unreft::smp
