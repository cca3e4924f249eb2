#include "smp/desk/rank_session.h"

#include <fmt/format.h>

#include "base/format.h"
#include "smp/core/usable_segment.h"

namespace unreft::smp {

absl::Status RankSession::OpenControl(const std::string& prefix) {
  if (control_ != nullptr) return absl::OkStatus();
  // Named by the life, so that a zombie never shares words with its successor.
  control_name_ = fmt::format("{}control.{}.{}.{}", prefix, rank(), life().pid, life().start_time);
  absl::StatusOr<std::unique_ptr<Segment>> segment = OpenUsable(segments_, control_name_);
  bool is_new = absl::IsNotFound(segment.status());
  if (is_new) segment = segments_.Create(control_name_, kControlSegmentBytes);
  if (!segment.ok()) return segment.status();
  if (absl::Status status = (*segment)->Reserve(0, kControlSegmentBytes); !status.ok()) {
    if (is_new) (void)segments_.Remove(control_name_);
    return status;
  }
  control_segment_ = *std::move(segment);
  // Or died before it wrote the page.
  is_new |= reinterpret_cast<const ControlPage*>(control_segment_->bytes().data())->magic == 0;
  if (is_new) {
    control_ = &FormatControlPage(control_segment_->bytes(), rank());
    return absl::OkStatus();
  }
  absl::StatusOr<ControlPage*> page = CheckControlPage(control_segment_->bytes(), rank());
  if (!page.ok()) return page.status();
  control_ = *page;
  return absl::OkStatus();
}

void RankSession::RemoveControl() {
  if (control_ == nullptr) return;
  control_ = nullptr;
  control_segment_.reset();
  (void)segments_.Remove(control_name_);  // it may be gone with the job's segments already
}

}  // namespace unreft::smp
