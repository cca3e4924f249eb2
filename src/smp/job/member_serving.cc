// What a member answers to other nodes.

#include <fmt/format.h>

#include <utility>

#include "base/format.h"
#include "layout/manifest.h"
#include "smp/job/cluster_records.h"
#include "smp/job/member.h"

namespace unreft::smp {

void Member::Serve() {
  peers_.Answer<VerifyRequest, VerifyReply>(
      "verify",
      [this](NodeSlot, VerifyRequest request, auto done) { OnVerify(request, std::move(done)); });
  peers_.Answer<ManifestRequest, ManifestReply>(
      "manifests",
      [this](NodeSlot, ManifestRequest request, auto done) { done(OnManifests(request)); });
}

void Member::OnVerify(const VerifyRequest& request,
                      absl::AnyInvocable<void(absl::StatusOr<VerifyReply>)> done) {
  if (request.round() != follower_->round_closed()) {
    return done(absl::FailedPreconditionError(
        fmt::format("node {} has closed round {}, round {} was asked for", options_.node,
                    follower_->round_closed(), request.round())));
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
