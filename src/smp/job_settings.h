// What all daemons of a job are started with alike, and whether this one is.
//
//   first of the job   writes "settings" in the meta store, if there is none, before it touches its
//                      memory
//   each other         compares; one that differs is refused, with both values and where they come
//                      from, and says so to those that run by "refused/PLACE"
//
// The record is another's only while the job has nothing to lose by it: nobody else is present, and
// nothing is committed. A store that was lost has it again from those who run: one of them that was
// in a view puts its own in the place of what a newcomer has written there.
//
// What the store said is also kept in the record store, beside the memory that was made by it: so
// that a daemon which does not reach the store, or is the first to come to one that was lost, does
// not touch the memory by other settings either, nor make them the job's.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/log.h"
#include "meta/job_store.h"
#include "smp/node_options.h"
#include "smp/node_state.h"

namespace unreft::smp {

SettingsRecord SettingsOf(const NodeOptions& options, const std::string& address);

// "parity_chunks is 0 here (the default), 2 in the job"; what a record does not have is no
// difference.
std::vector<std::string> DifferencesFrom(const SettingsRecord& job, const NodeOptions& options);

// FailedPrecondition names what differs, who wrote the record, and what to do.
absl::Status CompareSettings(const SettingsRecord& job, const NodeOptions& options);

// A daemon's side of the record in the meta store. Single-threaded on the executor.
class JobSettings {
 public:
  // `on_change`: agreed(), or refusal(), is another, not by Follow itself. All references outlive
  // this.
  JobSettings(meta::Kv& kv, Executor& executor, Log& log, const NodeOptions& options,
              std::string address, absl::AnyInvocable<void()> on_change);
  ~JobSettings();

  // Once: whether the settings agree with the job's; FailedPrecondition if not, Unavailable as long
  // as the store does not say. NotFound if the job has none that it would hold on to: ours become
  // the job's only if `may_write`, which is ok then.
  using Done = absl::AnyInvocable<void(absl::Status)>;
  void Ask(bool may_write, Done done);

  // The store's records are others than they were. `was_in_view`: what is lost with this memory was
  // the job's.
  void Follow(const meta::JobState& job, bool was_in_view);

  // The job's settings are ours, by what was read last and did not contradict.
  bool agreed() const { return !agreed_in_.empty() && refusal_.ok(); }
  const absl::Status& refusal() const { return refusal_; }

 private:
  struct Seen;
  void Try(bool restores, int waits, Done done);
  void OnRead(const std::vector<meta::KeyValue>& all, bool restores, int waits, Done done);
  Seen Look(const std::vector<meta::KeyValue>& all) const;
  void Replace(meta::Revision seen, bool restores, int waits, Done done);
  void SayRefused(const absl::Status& why, Done done);

  meta::Kv& kv_;
  Executor& executor_;
  Log& log_;
  const NodeOptions& options_;
  const std::string address_;
  const std::string prefix_;
  absl::AnyInvocable<void()> on_change_;
  std::string agreed_in_;    // the id of the store
  meta::Revision known_at_;  // of the store, when it was asked last; what was read may be older
  absl::Status refusal_;
  bool is_asking_ = false;
  bool may_write_ = true;
  TimerId again_ = TimerId::kNone;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // tells late answers we are gone
};

// Before a daemon touches the memory of the one before: asks the store, if the job has one, and
// compares with what lies beside the memory where that does not say. ok as well if neither can be
// asked now.
class SettingsCheck {
 public:
  SettingsCheck(NodeSeams& seams, const NodeOptions& options);

  // Once; `done` in a turn of its own.
  void Start(absl::AnyInvocable<void(absl::Status)> done);

 private:
  void AskJob(bool may_write);
  void CompareWithRecords(absl::AnyInvocable<void()> agree);
  void Keep();
  void End(absl::Status status);

  NodeSeams& seams_;
  const NodeOptions& options_;
  std::unique_ptr<JobSettings> job_;  // null in a job of one node
  absl::AnyInvocable<void(absl::Status)> done_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // tells late answers we are gone
};

}  // namespace unreft::smp
