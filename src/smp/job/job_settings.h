// What all daemons of a job are started with alike, and whether this one is.
//
//   first of the job   writes "settings" in the meta store, if there is none, before it touches its
//                      memory
//   each other         compares; one that differs is refused, with both values and where they come
//                      from, and says so to those that run by "refused/PLACE", which the next
//                      daemon of the place removes that agrees
//
// The record is another's only while the job has nothing to lose by it: nobody else is present, and
// nothing is committed. A store that was lost has it again from those who remember: who runs and
// was in a view or has kept the job's records, or starts with memory that was made by the same,
// puts its own in the place of what a newcomer has written there. Into such a store, which knows of
// no attempt yet, nobody writes others than those that the memory beside it was made by
// (SettingsCheck).
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "meta/job_store.h"
#include "meta/kv.h"
#include "smp/core/node_options.h"

namespace unreft::smp {

SettingsRecord SettingsOf(const NodeOptions& options, const std::string& address);

// "parity_chunks is 0 here (the default), 2 in the job"; what a record does not have is no
// difference.
std::vector<std::string> DifferencesFrom(const SettingsRecord& job, const NodeOptions& options);

// FailedPrecondition names what differs from `whose` settings, who wrote the record, and what to
// do.
absl::Status CompareSettings(const SettingsRecord& job, const NodeOptions& options,
                             std::string_view whose = "the job");

// What lies on this host of the job, by the settings that it was made by.
enum class KeptMemory { kNone, kAgrees, kDiffers };

// A daemon's side of the record in the meta store. Single-threaded on the executor.
class JobSettings {
 public:
  // `on_change`: agreed(), or refusal(), is another, not by Follow itself. All references outlive
  // this.
  JobSettings(meta::Kv& kv, Executor& executor, Log& log, const NodeOptions& options,
              std::string address, absl::AnyInvocable<void()> on_change);
  ~JobSettings();

  // Once: whether the settings agree with the job's; FailedPrecondition if not, Unavailable as long
  // as the store does not say, NotFound if it is blank and `memory` says that there are others.
  using Done = absl::AnyInvocable<void(absl::Status)>;
  void Ask(KeptMemory memory, Done done);

  // The store's records are others than they were. `is_of_job`: this daemon's memory was in a view,
  // or it has kept the job's records, by which the job goes on where all memory was lost.
  void Follow(const meta::JobState& job, bool is_of_job);

  // The job's settings are ours, by what was read last and did not contradict.
  bool agreed() const { return !agreed_in_.empty() && refusal_.ok(); }
  const absl::Status& refusal() const { return refusal_; }

 private:
  struct Seen;
  struct Asked {
    KeptMemory memory = KeptMemory::kNone;
    bool restores = false;  // the store lost what this daemon was in
    bool may_take = true;   // no: it has agreed with this store, in which another has its own now
    int waits = 0;          // for others to be gone, or to come
  };
  static constexpr meta::Revision kNone{};
  // Ours, if the record is as it was `seen`, or there is none; else what is there is read.
  void Write(meta::Revision seen, Asked asked, Done done);
  void OnRead(const std::vector<meta::KeyValue>& all, Asked asked, Done done);
  Seen Look(const std::vector<meta::KeyValue>& all) const;
  absl::Status DoesNotKnow() const;
  void SayRefused(const absl::Status& why, Done done);
  void ForgetRefusal();

  meta::Kv& kv_;
  Executor& executor_;
  Log& log_;
  const NodeOptions& options_;
  const std::string address_;
  const uint64_t place_;
  const std::string prefix_;
  const std::string refused_key_;
  absl::AnyInvocable<void()> on_change_;
  std::string agreed_in_;    // the id of the store
  meta::Revision known_at_;  // of the store, when it was asked last; what was read may be older
  absl::Status refusal_;
  bool is_asking_ = false;
  TimerId again_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
