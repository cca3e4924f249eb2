#include "snapshot/plan_follower.h"

#include <utility>

namespace unreft::snapshot {

std::string PlanFollower::Late(const std::string& what) const {
  const auto timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.restore_timeout);
  return fmt::format("{} within {} ms ({})", what, timeout.count(), session_.Connection());
}

void PlanFollower::Begin(std::vector<BoundTensor> targets, GotPlan done) {
  Cancel(absl::AbortedError("another call of the same kind took its place"));
  read_ = std::make_shared<Read>();
  read_->targets = std::move(targets);
  read_->deadline = executor_.Now() + options_.restore_timeout;
  Ask(std::move(done));
}

void PlanFollower::Ask(GotPlan done) {
  read_->phase = Phase::kAsked;
  auto got = [this, read = read_,
              done = std::move(done)](absl::StatusOr<RestorePlan> plan) mutable {
    if (!plan.ok() && read_ == read) read_.reset();
    done(std::move(plan));
  };
  plan_waiter_.Wait(
      Left(), [this] { return Late("no plan of the restore"); }, lifetime_.Bind(std::move(got)));
  PlanRequest request{
      .request = ++last_request_, .tensors = ToWire(SpecsOf(read_->targets)), .reads_pages = true};
  for (uint32_t i = 0; i < read_->targets.size(); ++i) {
    if (read_->targets[i].spec.allow_shape_mismatch) request.allow_shape_mismatch.push_back(i);
  }
  session_.Ask(std::move(request));
}

void PlanFollower::OnPlan(Plan said, std::vector<PlanPiece> pieces) {
  const absl::Status status = StatusOf(said, pieces.size());
  RestorePlan plan{.sources = std::move(said.sources),
                   .pieces = std::move(pieces),
                   .staging_segment = std::move(said.staging_segment),
                   .staging_bytes = said.staging_bytes,
                   .staged_bytes = said.staged_bytes,
                   .block_bytes = said.block_bytes};
  if (plan_waiter_.waiting()) {
    if (!status.ok()) return plan_waiter_.Answer(status);
    read_->plan = plan;
    StartStaging();
    return plan_waiter_.Answer(std::move(plan));
  }
  // Nobody waits for it any more.
  if (read_ == nullptr || read_->phase != Phase::kStaging) return session_.EndPlan();
  if (!status.ok()) return EndStaging(status);
  if (plan.sources != read_->plan.sources || plan.pieces != read_->plan.pieces) {
    read_->replan = true;
    return EndStaging(absl::OkStatus());
  }
  read_->plan = std::move(plan);
  StartStaging();
}

absl::Status PlanFollower::StatusOf(const Plan& plan, size_t pieces) const {
  if (absl::Status status = plan.status.ToStatus(); !status.ok()) return status;
  if (!session_.knows(FrameType::kPlanPage)) {
    return absl::FailedPreconditionError(
        "the daemon of this node is of an earlier release than this library and names no plan that "
        "the library reads: restart it with the library's release (unreft down --keep-memory, then "
        "unreft up)");
  }
  if (pieces == plan.paged_pieces) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("plan: {} pieces were announced, {} came", plan.paged_pieces, pieces));
}

void PlanFollower::StartStaging() {
  if (read_->plan.staged_bytes == 0) return EndStaging(absl::OkStatus());
  read_->phase = Phase::kStaging;
  absl::StatusOr<StagedReader> reader = MakeReader();
  if (!reader.ok()) return EndStaging(reader.status());
  read_->staged.emplace(*std::move(reader));
}

absl::StatusOr<StagedReader> PlanFollower::MakeReader() {
  if (absl::Status status = MapStaging(read_->plan); !status.ok()) return status;
  return StagedReader::Create(read_->plan, staging_, read_->targets, copier_,
                              options_.staged_bad_blocks_max);
}

absl::Status PlanFollower::MapStaging(const RestorePlan& plan) {
  absl::StatusOr<std::unique_ptr<Segment>> segment =
      segments_.Open(plan.staging_segment, Access::kReadOnly);
  if (!segment.ok()) return segment.status();
  staging_ = *std::move(segment);
  return absl::OkStatus();
}

void PlanFollower::OnStaged(const Staged& staged) {
  if (read_ == nullptr || !read_->staged) return;
  absl::StatusOr<std::optional<StagedDone>> answer = read_->staged->Take(staged);
  if (!answer.ok()) return EndStaging(answer.status());
  if (*answer) session_.Tell(**answer);
  if (read_->staged->complete()) EndStaging(absl::OkStatus());
}

void PlanFollower::EndStaging(const absl::Status& status) {
  read_->staged.reset();
  read_->phase = Phase::kOver;
  read_->status = status;
  session_.EndPlan();
  if (end_waiter_.waiting()) {
    absl::StatusOr<Unit> answer = Unit{};
    if (!status.ok()) answer = status;
    end_waiter_.Answer(std::move(answer));
  }
  // Unmapped in a turn of its own: whoever waits gets the answer first.
  if (staging_ != nullptr) executor_.Post([staging = std::move(staging_)] {});
}

// The daemon that answers next may have another segment under the same name.
void PlanFollower::OnLost() {
  if (read_ != nullptr) read_->staged.reset();
  staging_.reset();
}

void PlanFollower::Cancel(const absl::Status& why) {
  plan_waiter_.Answer(why);
  if (read_ == nullptr) return;
  read_->replan = false;
  EndStaging(why);
}

void PlanFollower::Finish(Finished done) {
  if (read_ == nullptr) {
    return executor_.Post(
        [done = std::move(done)]() mutable { done(absl::AbortedError("the restore was ended")); });
  }
  auto over = [this, read = read_,
               done = std::move(done)](const absl::StatusOr<Unit>& answer) mutable {
    Conclude(read, answer.status(), std::move(done));
  };
  end_waiter_.Wait(
      Left(), [this] { return Late("not all staged bytes of the restore came"); },
      lifetime_.Bind(std::move(over)));
  if (read_->phase == Phase::kOver) EndStaging(read_->status);
}

void PlanFollower::Conclude(const std::shared_ptr<Read>& read, const absl::Status& status,
                            Finished done) {
  if (read_ != read) return done(status);  // canceled for another
  if (status.ok() && std::exchange(read->replan, false)) {
    return Ask([done = std::move(done)](absl::StatusOr<RestorePlan> plan) mutable {
      if (!plan.ok()) return done(plan.status());
      done(*std::move(plan));
    });
  }
  EndStaging(status);  // at the deadline it is not over yet
  read_.reset();
  if (!status.ok()) return done(status);
  done(std::nullopt);
}

}  // namespace unreft::snapshot
