// What a member answers to other nodes, and what it asks the leader for the CLI.

#include <fmt/format.h>

#include <utility>

#include "base/format.h"
#include "layout/manifest.h"
#include "smp/job/cluster_records.h"
#include "smp/job/member.h"

namespace unreft::smp {

void Member::Serve() {
  peers_.Serve("report", [this](NodeSlot from, const std::string& body, Transport::CallDone done) {
    NodeReport report;
    if (leader_ == nullptr) {
      return done(
          absl::FailedPreconditionError(fmt::format("node {} does not lead", options_.node)));
    }
    if (!report.ParseFromString(body)) {
      return done(absl::InvalidArgumentError(
          fmt::format("the report of node {} of {} bytes is of no use", from, body.size())));
    }
    const absl::StatusOr<ReportReply> reply = leader_->OnReport(from, std::move(report));
    done(reply.ok() ? absl::StatusOr<std::string>(reply->SerializeAsString()) : reply.status());
  });
  peers_.Answer<FreshStartRequest, FreshStartReply>(
      "fresh-start", [this](NodeSlot from, FreshStartRequest request, auto done) {
        if (leader_ == nullptr) {
          return done(
              absl::FailedPreconditionError(fmt::format("node {} does not lead", options_.node)));
        }
        leader_->DeclareFreshStart(
            from, request.force(),
            [done = std::move(done)](absl::StatusOr<Timeline> timeline) mutable {
              if (!timeline.ok()) return done(timeline.status());
              FreshStartReply reply;
              reply.set_timeline(timeline->value);
              done(std::move(reply));
            });
      });
  peers_.Answer<PinRequest, PinReply>("pins", [this](NodeSlot, PinRequest request, auto done) {
    if (leader_ != nullptr) return leader_->AskPins(std::move(request), std::move(done));
    done(absl::UnavailableError(fmt::format("node {} does not lead; try again", options_.node)));
  });
  peers_.Answer<VerifyRequest, VerifyReply>(
      "verify",
      [this](NodeSlot, VerifyRequest request, auto done) { OnVerify(request, std::move(done)); });
  peers_.Answer<ManifestRequest, ManifestReply>(
      "manifests",
      [this](NodeSlot, ManifestRequest request, auto done) { done(OnManifests(request)); });
  peers_.Answer<ExposureRequest, ExposureReply>(
      "exposure", [this](NodeSlot, ExposureRequest, auto done) {
        if (leader_ != nullptr) return done(leader_->Exposure());
        done(absl::FailedPreconditionError(fmt::format("node {} does not lead", options_.node)));
      });
}

void Member::OnVerify(const VerifyRequest& request,
                      absl::AnyInvocable<void(absl::StatusOr<VerifyReply>)> done) {
  if (request.round() != round_closed_) {
    return done(absl::FailedPreconditionError(
        fmt::format("node {} has closed round {}, round {} was asked for", options_.node,
                    round_closed_, request.round())));
  }
  if (request.session() != 0 && (request.session() != record_.session().value ||
                                 request.incarnation() != seat_.Presence().incarnation())) {
    return done(absl::FailedPreconditionError(
        fmt::format("node {} is of session {}, session {} was asked for", options_.node,
                    record_.session(), request.session())));
  }
  const Version version = VersionOf(request);
  const uint64_t round = request.round();
  std::vector<Question>& questions = verifying_[{round, version}];
  questions.push_back({request.want_manifests(), std::move(done)});
  if (questions.size() > 1) return;
  node_.Verify(version, lifetime_.Bind([this, round, version](absl::Status slabs) {
    protection_->Verify(version,
                        lifetime_.Bind([this, round, version, slabs](const absl::Status& guard) {
                          OnVerified(round, version, slabs.ok() ? guard : slabs);
                        }));
  }));
}

void Member::OnVerified(uint64_t round, Version version, const absl::Status& problem) {
  auto questions = verifying_.extract({round, version});
  for (Question& question : questions.mapped()) {
    VerifyReply reply;
    reply.set_problem(std::string(problem.message()));
    *reply.mutable_versions() = MakeReport().versions();
    reply.set_report_number(++report_number_);
    if (question.wants_manifests) {
      for (const HeldSlab& held : node_.Inventory()) {
        if (held.slab.version == version) {
          reply.add_manifests(layout::EncodeManifest(*held.manifest));
        }
      }
      for (std::string& manifest : protection_->ReplicaManifests(version)) {
        reply.add_manifests(std::move(manifest));
      }
    }
    question.done(std::move(reply));
  }
}

std::optional<ExposureReply> Member::OwnExposure() const {
  if (leader_ == nullptr) return std::nullopt;
  return leader_->Exposure();
}

void Member::AskExposure(absl::AnyInvocable<void(absl::StatusOr<ExposureReply>)> done) {
  const meta::JobState& state = store_.state();
  if (!store_.ready() || !state.leader.exists()) {
    const absl::Status none = absl::UnavailableError(
        fmt::format("node {} knows of no leader{}{}", options_.node,
                    store_.status().ok() ? "" : ": ", store_.status().message()));
    return seams_.executor.Post([none, done = std::move(done)]() mutable { done(none); });
  }
  peers_.Ask<ExposureReply>(NodeSlot{state.leader.value.slot()}, "exposure", ExposureRequest(),
                            options_.call_timeout, std::move(done));
}

absl::StatusOr<ManifestReply> Member::OnManifests(const ManifestRequest& request) {
  ManifestReply reply;
  if (request.registered()) {
    for (const RegisteredTrainer& trainer : node_.Registrations()) {
      layout::SlotManifest manifest = ManifestOf(*trainer.registration);
      manifest.job = options_.job;
      manifest.rank = trainer.rank;
      manifest.world = trainer.world;
      manifest.attempt = trainer.attempt;
      manifest.block_bytes = static_cast<uint32_t>(options_.block_bytes);
      manifest.data_bytes = trainer.registration->plan.data_bytes();
      reply.add_manifests(layout::EncodeManifest(manifest));
    }
    return reply;
  }
  for (const HeldSlab& held : node_.Inventory()) {
    if (held.slab.version != VersionOf(request)) continue;
    reply.add_manifests(layout::EncodeManifest(*held.manifest));
  }
  return reply;
}

}  // namespace unreft::smp
