// RoundCopies: what a round of the leader's has found out of the job's durable copies, once nothing
// in memory can be restored. Nothing of it outlives the round.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "smp/job/durable_copies.h"

namespace unreft::smp {

// Single-threaded.
class RoundCopies {
 public:
  enum class State {
    kNowhere,    // the job has no directory of copies
    kUnasked,    // nobody has looked yet
    kSearching,  // somebody looks
    kFound,      // it is known which there are; perhaps none
    kLoading,    // one is on its way into memory
    kLoaded,     // it is there, and the nodes are about to report it
    kFailed,
  };

  // `has_directory`: whether there is anything to look at.
  explicit RoundCopies(bool has_directory) : has_directory_(has_directory) { Begin(); }

  // The round that is under way.
  void Follow(uint64_t round);
  uint64_t round() const { return round_; }

  void OnSearching() { state_ = State::kSearching; }
  // A copy without an order is one that cannot be read.
  void OnFound(absl::StatusOr<std::vector<DurableCopy>> copies);
  void OnLoading(const DurableCopy& copy);
  // One that is damaged is not chosen any more.
  void OnLoaded(const absl::Status& status, Time now);

  bool IsUnderWay() const { return state_ == State::kSearching || state_ == State::kLoading; }

  State state() const { return state_; }
  // The newest first.
  const std::vector<DurableCopy>& copies() const { return copies_; }
  bool IsDamaged(const DurableCopy& copy) const { return damaged_ids_.contains(copy.order.id()); }
  // That is loaded, or being loaded.
  const std::optional<DurableCopy>& chosen() const { return chosen_; }
  Time loaded_at() const { return loaded_at_; }
  // Why it has failed.
  const absl::Status& problem() const { return problem_; }
  // What is damaged, for people; empty: nothing.
  const std::string& damaged() const { return damaged_; }

 private:
  void Begin();

  bool has_directory_;
  uint64_t round_ = 0;
  State state_ = State::kNowhere;
  std::vector<DurableCopy> copies_;
  std::optional<DurableCopy> chosen_;
  Time loaded_at_{};
  absl::Status problem_;
  std::set<std::string> damaged_ids_;
  std::string damaged_;
};

}  // namespace unreft::smp
