#include "smp/job/reporter.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "smp/core/pace.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {

Reporter::Reporter(Seams seams, ReportMaker& reports, Coordinator::Node& node,
                   const NodeOptions& options, FindListener find_listener)
    : seams_(seams),
      reports_(reports),
      node_(node),
      options_(options),
      find_listener_(std::move(find_listener)) {}

Reporter::~Reporter() {
  seams_.executor.Cancel(soon_);
  seams_.executor.Cancel(later_);
}

void Reporter::Report() {
  wanted_ = true;
  if (is_running_ || soon_ != TimerId::kNone) return;
  // Not too soon: what happens until then is told at once.
  const Time now = seams_.executor.Now();
  const Time next = reported_at_ ? *reported_at_ + PaceOf(options_.nodes) : now;
  soon_ = seams_.executor.After(std::max(next - now, Duration{}), [this] {
    soon_ = TimerId::kNone;
    Send();
  });
}

void Reporter::ReportSoon() {
  if (std::exchange(wanted_soon_, true) || is_running_) return;
  ReportLater(options_.report_interval / 10);
}

void Reporter::ReportLater(Duration delay) {
  seams_.executor.Cancel(later_);
  later_ = seams_.executor.After(delay, [this] {
    later_ = TimerId::kNone;
    Report();
  });
}

void Reporter::FollowLeader(const meta::HeldKey& key) {
  if (sent_to_ != key) is_running_ = false;
}

void Reporter::Send() {
  wanted_ = wanted_soon_ = false;
  reported_at_ = seams_.executor.Now();
  seams_.executor.Cancel(std::exchange(later_, TimerId::kNone));
  std::optional<Listener> listener = find_listener_();
  if (!listener) {
    node_.OnObstacle("");  // what a leader said before may be over
    return ReportLater(options_.report_interval);
  }
  is_running_ = true;
  NodeReport report = reports_.Make();
  sent_ = report.number();
  sent_to_ = std::move(listener->key);
  const std::string bytes = report.SerializeAsString();
  seams_.peers.Call(
      listener->slot, "report", bytes, options_.call_timeout,
      lifetime_.Bind([this, report = std::move(report)](const absl::StatusOr<std::string>& reply) {
        OnReply(report, reply);
      }));
}

void Reporter::OnReply(const NodeReport& report, const absl::StatusOr<std::string>& bytes) {
  if (report.number() != sent_) return;
  is_running_ = false;
  const bool is_open = bytes.ok() && TakeReply(report, *bytes);
  if (wanted_) return Report();
  const bool is_due_soon = is_open || wanted_soon_;
  ReportLater(is_due_soon ? options_.report_interval / 10 : options_.report_interval);
}

// Whether the leader has to be asked again soon.
bool Reporter::TakeReply(const NodeReport& report, const std::string& bytes) {
  ReportReply reply;
  if (!reply.ParseFromString(bytes)) {
    seams_.log.WarnEvery("report", std::chrono::seconds(10), seams_.executor.Now(),
                         "the leader's answer to a report, of {} bytes, is of no use",
                         bytes.size());
    return false;
  }
  node_.OnAttemptOver(reply.over_round());
  node_.OnObstacle(CleanText(reply.obstacle(), kTextBytesMax));
  const auto state = static_cast<RegistrationState>(reply.registrations());
  if (state == RegistrationState::kLooking) return true;
  RegistrationCheck check;
  for (const RegisteredRank& rank : report.registered()) {
    check.layouts[Rank{rank.rank()}] = rank.layout_digest();
  }
  if (state == RegistrationState::kMisfit) {
    check.status = absl::FailedPreconditionError(CleanText(reply.misfit(), kTextBytesMax));
  }
  node_.OnRegistrationsChecked(check);
  return state == RegistrationState::kMisfit;
}

}  // namespace unreft::smp
