#include "smp/job/round_copies.h"

#include <fmt/format.h>

#include <utility>

#include "base/text.h"

namespace unreft::smp {

void RoundCopies::Begin() { state_ = has_directory_ ? State::kUnasked : State::kNowhere; }

void RoundCopies::Follow(uint64_t round) {
  if (round_ == round) return;
  *this = RoundCopies(has_directory_);
  round_ = round;
}

void RoundCopies::OnFound(absl::StatusOr<std::vector<DurableCopy>> copies) {
  state_ = copies.ok() ? State::kFound : State::kFailed;
  problem_ = copies.status();
  if (!copies.ok()) return;
  for (DurableCopy& copy : *copies) {
    if (!copy.order.id().empty()) {
      copies_.push_back(std::move(copy));
    } else if (damaged_.empty()) {
      damaged_ = fmt::format("the order of the durable copy {} cannot be read",
                             CleanText(copy.directory, kTextBytesMax));
    }
  }
}

void RoundCopies::OnLoading(const DurableCopy& copy) {
  state_ = State::kLoading;
  chosen_ = copy;
}

void RoundCopies::OnLoaded(const absl::Status& status, Time now) {
  if (status.ok()) {
    state_ = State::kLoaded;
    loaded_at_ = now;
    return;
  }
  if (!absl::IsDataLoss(status)) {
    state_ = State::kFailed;
    problem_ = status;
    return;
  }
  damaged_ = std::string(status.message());
  damaged_ids_.insert(chosen_->order.id());
  chosen_.reset();
  state_ = State::kFound;
}

}  // namespace unreft::smp
