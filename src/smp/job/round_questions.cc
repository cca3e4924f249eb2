#include "smp/job/round_questions.h"

#include <fmt/format.h>

#include "base/format.h"
#include "layout/manifest.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {

RoundQuestions::RoundQuestions(Peers& peers, Parts parts, const NodeOptions& options)
    : parts_(parts), options_(options) {
  peers.Answer<VerifyRequest, VerifyReply>(
      "verify",
      [this](NodeSlot, VerifyRequest request, auto done) { OnVerify(request, std::move(done)); });
  peers.Answer<ManifestRequest, ManifestReply>(
      "manifests",
      [this](NodeSlot, ManifestRequest request, auto done) { done(OnManifests(request)); });
}

absl::Status RoundQuestions::CheckAsked(const VerifyRequest& request) const {
  const uint64_t closed = parts_.follower.round_closed();
  if (request.round() != closed) {
    return absl::FailedPreconditionError(
        fmt::format("node {} has closed round {}, round {} was asked for", options_.node, closed,
                    request.round()));
  }
  // An older leader names no process.
  if (request.session() == 0) return absl::OkStatus();
  if (request.session() != parts_.record.session().value ||
      request.incarnation() != AsBytes(parts_.record.incarnation())) {
    return absl::FailedPreconditionError(
        fmt::format("node {} is of session {}, session {} was asked for", options_.node,
                    parts_.record.session(), request.session()));
  }
  return absl::OkStatus();
}

void RoundQuestions::OnVerify(const VerifyRequest& request, VerifyDone done) {
  if (absl::Status status = CheckAsked(request); !status.ok()) return done(std::move(status));
  const Version version = VersionOf(request);
  const uint64_t round = request.round();
  std::vector<Question>& questions = verifying_[{round, version}];
  questions.push_back({request.want_manifests(), std::move(done)});
  if (questions.size() > 1) return;
  parts_.node.Verify(version, lifetime_.Bind([this, round, version](absl::Status slabs) {
    parts_.protection.Verify(
        version, lifetime_.Bind([this, round, version, slabs](const absl::Status& guard) {
          OnVerified(round, version, slabs.ok() ? guard : slabs);
        }));
  }));
}

void RoundQuestions::OnVerified(uint64_t round, Version version, const absl::Status& problem) {
  auto questions = verifying_.extract({round, version});
  for (Question& question : questions.mapped()) {
    const NodeReport report = parts_.reports.Make();
    VerifyReply reply;
    reply.set_problem(std::string(problem.message()));
    *reply.mutable_versions() = report.versions();
    reply.set_report_number(report.number());
    if (question.wants_manifests) {
      for (std::string& manifest : ManifestsOf(version)) reply.add_manifests(std::move(manifest));
      for (std::string& manifest : parts_.protection.DescribedManifests(version)) {
        reply.add_manifests(std::move(manifest));
      }
    }
    question.done(std::move(reply));
  }
}

std::vector<std::string> RoundQuestions::ManifestsOf(Version version) const {
  std::vector<std::string> manifests;
  for (const HeldSlab& held : parts_.node.Inventory()) {
    if (held.slab.version == version) manifests.push_back(layout::EncodeManifest(*held.manifest));
  }
  return manifests;
}

ManifestReply RoundQuestions::OnManifests(const ManifestRequest& request) const {
  ManifestReply reply;
  if (request.registered()) {
    for (const RegisteredTrainer& trainer : parts_.node.Registrations()) {
      reply.add_manifests(RegisteredManifest(trainer));
    }
    return reply;
  }
  for (std::string& manifest : ManifestsOf(VersionOf(request))) {
    reply.add_manifests(std::move(manifest));
  }
  return reply;
}

// As it will be of what the rank captures, before anything was.
std::string RoundQuestions::RegisteredManifest(const RegisteredTrainer& trainer) const {
  layout::SlotManifest manifest = ManifestOf(*trainer.registration);
  manifest.job = options_.job;
  manifest.rank = trainer.rank;
  manifest.world = trainer.world;
  manifest.attempt = trainer.attempt;
  manifest.block_bytes = static_cast<uint32_t>(options_.block_bytes);
  manifest.data_bytes = trainer.registration->plan.data_bytes();
  return layout::EncodeManifest(manifest);
}

}  // namespace unreft::smp
