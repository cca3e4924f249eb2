#include "smp/node/own_copies.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

constexpr Duration kAgainAfter = std::chrono::minutes(1);  // after a failure, at most
constexpr std::chrono::seconds kSurveyAgainAfter(5);       // the drain is busy
constexpr std::chrono::minutes kSurveyMax(10);

}  // namespace

OwnCopies::OwnCopies(NodeState& state, Member& member, DrainProcess* drain, ExportPolicy policy)
    : state_(state), member_(member), drain_(drain), policy_(std::move(policy)) {}

std::optional<ExportWish> OwnCopies::Due(bool under_way) {
  if (drain_ == nullptr || policy_.directory.empty()) return std::nullopt;
  if (!member_.leads()) newest_.reset();  // whoever leads may write copies that this node knows not
  const Time now = state_.seams.executor.Now();
  if (is_surveying_ && now - survey_began_ >= kSurveyMax) {
    SetSurveyError(fmt::format("{} does not answer", CleanText(policy_.directory, kTextBytesMax)));
  }
  if (!member_.leads() || under_way || is_surveying_ || now < not_before_) return std::nullopt;
  // What is being decided may need this node's drain.
  if (member_.records().timeline.value.closing()) return std::nullopt;
  if (!newest_) {
    Survey();
    return std::nullopt;
  }
  const CommitRecord& commit = member_.records().commit.value;
  const Version committed = VersionOf(commit);
  if (commit.world() == 0 || committed == newest_->version) return std::nullopt;
  const bool has_one = newest_->version != Version{};
  if (has_one && AgeOf(*newest_) < policy_.every) return std::nullopt;
  ExportWish wish;
  wish.directory = policy_.directory;
  wish.bytes_per_s = policy_.bytes_per_s;
  wish.keep = policy_.keep;
  return wish;
}

Duration OwnCopies::AgeOf(const Newest& newest) const {
  return state_.seams.executor.Now() - newest.ordered;
}

// The daemon itself touches no file there.
void OwnCopies::Survey() {
  CopyPartRequest request;
  request.set_what(CopyPartRequest::SURVEY);
  request.set_directory(policy_.directory);
  is_surveying_ = true;
  survey_began_ = state_.seams.executor.Now();
  auto said = std::make_shared<CopyPartReply>();
  said->set_error("the drain ended without a word: see its log");
  const absl::Status status = drain_->Start(
      request.SerializeAsString(),
      [said](const std::string& line) {
        (void)said->ParseFromString(absl::HexStringToBytes(line));
      },
      lifetime_.Bind([this, said] { OnSurveyed(*said); }));
  if (status.ok()) return;
  is_surveying_ = false;  // the drain may write a part for another node's copy
  SetSurveyError(CleanText(std::string(status.message()), kTextBytesMax));
  not_before_ = state_.seams.executor.Now() + kSurveyAgainAfter;
}

void OwnCopies::OnSurveyed(const CopyPartReply& said) {
  const Time now = state_.seams.executor.Now();
  is_surveying_ = false;
  if (!said.is_done()) {
    SetSurveyError(CleanText(said.error(), kTextBytesMax));
    not_before_ = now + kAgainAfter;
    ++failed_surveys_;
    state_.seams.log.Warn("export: the copies in {} are not known: {}",
                          CleanText(policy_.directory, kTextBytesMax), last_error_);
    return;
  }
  const Version version = {Timeline{said.newest().timeline()}, Step{said.newest().step()}};
  newest_ = Newest{version, now - std::chrono::milliseconds(said.newest_age_ms())};
  if (std::exchange(is_survey_error_, false)) last_error_.clear();
}

void OwnCopies::SetSurveyError(const std::string& error) {
  last_error_ = error;
  is_survey_error_ = true;
}

void OwnCopies::OnEnded(const ExportRun& run) {
  last_error_ = run.error();
  is_survey_error_ = false;
  if (run.HasFailed()) {
    newest_.reset();  // it may be there all the same
    not_before_ = state_.seams.executor.Now() + std::min(policy_.every, kAgainAfter);
    return;
  }
  newest_ = Newest{run.version(), run.began()};
  for (const std::string& name : run.finished().removed()) {
    state_.seams.log.Info("export: the older copy {} was removed", CleanText(name, kTextBytesMax));
  }
  if (run.finished().prune_error().empty()) return;
  last_error_ =
      "an older copy was not removed: " + CleanText(run.finished().prune_error(), kTextBytesMax);
  state_.seams.log.Warn("export: {}", last_error_);
}

}  // namespace unreft::smp
