#include "smp/job/leading.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"

namespace unreft::smp {

Leading::Leading(Seams seams, const NodeOptions& options) : seams_(seams), options_(options) {
  Serve();
}

void Leading::Follow() {
  if (!seams_.seat.leads()) {
    if (leader_ != nullptr) seams_.log.Warn("node {} leads no longer", options_.node);
    End();
    if (!seams_.store.state().leader.exists()) seams_.seat.Campaign();
    return;
  }
  if (leader_ != nullptr && key_ == seams_.seat.leadership()) return;
  seams_.log.Info("node {} leads", options_.node);
  key_ = seams_.seat.leadership();
  End();
  leader_ = std::make_unique<Leader>(seams_.executor, seams_.store, seams_.peers, seams_.random,
                                     seams_.log, options_, key_, copies_, seams_.faults);
}

void Leading::End() {
  deadlines_used_ = deadlines_used();
  leader_.reset();
}

void Leading::RunRules() {
  if (leader_ != nullptr) leader_->RunRules();
}

uint64_t Leading::deadlines_used() const {
  return deadlines_used_ + (leader_ == nullptr ? 0 : leader_->deadlines_used());
}

std::optional<ExposureReply> Leading::Exposure() const {
  if (leader_ == nullptr) return std::nullopt;
  return leader_->Exposure();
}

absl::Status Leading::NotLeading() const {
  return absl::FailedPreconditionError(fmt::format("node {} does not lead", options_.node));
}

void Leading::Serve() {
  Peers& peers = seams_.peers;
  peers.Serve("report", [this](NodeSlot from, const std::string& body, Transport::CallDone done) {
    OnReport(from, body, std::move(done));
  });
  peers.Answer<FreshStartRequest, FreshStartReply>(
      "fresh-start", [this](NodeSlot from, FreshStartRequest request, auto done) {
        if (leader_ == nullptr) return done(NotLeading());
        leader_->DeclareFreshStart(
            from, request.force(),
            [done = std::move(done)](absl::StatusOr<uint64_t> timeline) mutable {
              if (!timeline.ok()) return done(timeline.status());
              FreshStartReply reply;
              reply.set_timeline(*timeline);
              done(std::move(reply));
            });
      });
  peers.Answer<RewindRequest, RewindReply>(
      "rewind", [this](NodeSlot from, const RewindRequest& request, auto done) {
        if (leader_ == nullptr) return done(NotLeading());
        leader_->Rewind(from, request, std::move(done));
      });
  peers.Answer<ResizeRequest, ResizeReply>(
      "resize", [this](NodeSlot from, const ResizeRequest& request, auto done) {
        if (leader_ == nullptr) return done(NotLeading());
        leader_->Resize(from, request, std::move(done));
      });
  peers.Answer<PinRequest, PinReply>("pins", [this](NodeSlot, PinRequest request, auto done) {
    if (leader_ != nullptr) return leader_->AskPins(std::move(request), std::move(done));
    done(absl::UnavailableError(fmt::format("node {} does not lead; try again", options_.node)));
  });
  peers.Answer<ExposureRequest, ExposureReply>("exposure",
                                               [this](NodeSlot, ExposureRequest, auto done) {
                                                 if (leader_ == nullptr) return done(NotLeading());
                                                 done(leader_->Exposure());
                                               });
}

void Leading::OnReport(NodeSlot from, const std::string& body, Transport::CallDone done) {
  if (leader_ == nullptr) return done(NotLeading());
  const absl::StatusOr<ReportReply> reply = leader_->OnReport(from, body);
  done(reply.ok() ? absl::StatusOr<std::string>(reply->SerializeAsString()) : reply.status());
}

}  // namespace unreft::smp
