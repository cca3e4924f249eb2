#include "smp/job/report_maker.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"
#include "layout/manifest.h"
#include "smp/job/cluster_records.h"
#include "smp/job/layout_check.h"

namespace unreft::smp {
namespace {

// A version's entry of a report, made when it is not there yet.
VersionHolding& EntryOf(std::map<Version, VersionHolding>& versions, Version version) {
  VersionHolding& entry = versions[version];
  SetVersion(version, entry);
  return entry;
}

void AddSealed(const HeldSlab& held, Version committed, VersionHolding& entry) {
  SealedRank& sealed = *entry.add_sealed();
  sealed.set_rank(held.slab.rank.value);
  sealed.set_world(held.slab.world);
  sealed.set_layout_digest(held.manifest->layout_digest);
  sealed.set_capture_mode(static_cast<uint32_t>(held.manifest->capture_mode));
  // Of what is committed they were compared.
  if (held.slab.version > committed) SetDigests(DigestsOf(*held.manifest), sealed);
}

void AddGuard(const GuardHeld& guard, VersionHolding& entry) {
  entry.set_guarded(guard.complete);
  entry.set_coding(guard.coding);
  entry.set_data_chunks(guard.data_chunks);
  for (const recovery::EncodedSlabs& encoded : guard.encoded) {
    EncodedMember& member = *entry.add_encoded();
    member.set_slot(encoded.slot.value);
    member.set_incarnation(encoded.memory);
    for (const Rank rank : encoded.ranks) member.add_ranks(rank.value);
  }
  for (const DescriptionHeld& description : guard.descriptions) {
    DescriptionHolding& next = *entry.add_descriptions();
    next.set_slot(description.of.value);
    for (const Rank rank : description.ranks) next.add_ranks(rank.value);
    next.set_world(description.world);
  }
}

void AddRegistered(const RegisteredTrainer& trainer, NodeReport& report) {
  RegisteredRank& registered = *report.add_registered();
  registered.set_rank(trainer.rank.value);
  registered.set_world(trainer.world);
  registered.set_attempt(trainer.attempt.value);
  registered.set_layout_digest(trainer.registration->plan.digest());
  if (trainer.passed) registered.set_passed_step(trainer.passed->value);
  for (const Step step : trainer.capturing) registered.add_capturing(step.value);
}

void AddAsking(const Follower::Asking& waiting, NodeReport& report) {
  report.set_attempt(waiting.attempt.value);
  report.set_world(waiting.world);
  for (const Asker& asker : waiting.askers) {
    AskingRank& asking = *report.add_asking();
    asking.set_rank(asker.rank.value);
    asking.set_pid(asker.life.pid);
    asking.set_start_time(asker.life.start_time);
    asking.set_request(asker.request);
    if (asker.at_or_before) asking.set_at_or_before(asker.at_or_before->value);
  }
}

}  // namespace

NodeReport ReportMaker::Make() {
  NodeReport report;
  report.set_number(++last_number_);
  AddRecord(report);
  report.set_round_applied(parts_.follower.round_applied());
  report.set_round_closed(parts_.follower.round_closed());
  report.set_newest_step(parts_.versions.newest_step().value);
  report.set_ranks(parts_.node.RanksServed());
  report.set_lives_round(parts_.node.LivesRound());
  report.set_any_world(true);
  report.set_any_groups(true);
  report.set_knows_copies(parts_.knows_copies);
  report.set_lacks_memory(parts_.node.LacksMemory() || parts_.protection.LacksMemory());
  for (auto& [version, entry] : Holdings()) *report.add_versions() = std::move(entry);
  for (const RegisteredTrainer& trainer : parts_.node.Registrations())
    AddRegistered(trainer, report);
  if (parts_.follower.asking()) AddAsking(*parts_.follower.asking(), report);
  return report;
}

void ReportMaker::AddRecord(NodeReport& report) const {
  report.set_session(parts_.record.session().value);
  report.set_incarnation(AsBytes(parts_.record.incarnation()));
  report.set_newest_timeline(parts_.record.chain().newest().value);
  report.set_capture_began(parts_.record.capture_began());
  report.set_view(parts_.record.view());
  report.set_kept_epoch(parts_.kept.stamp().epoch);
  report.set_kept_sequence(parts_.kept.stamp().sequence);
}

// What is held of each version, and why it can not become whole. A slab that has rotted is the
// last word of that.
std::map<Version, VersionHolding> ReportMaker::Holdings() const {
  std::map<Version, VersionHolding> holdings;
  for (const HeldSlab& held : parts_.node.Inventory()) {
    AddSealed(held, parts_.record.committed(), EntryOf(holdings, held.slab.version));
  }
  for (const GuardHeld& guard : parts_.protection.Held()) {
    AddGuard(guard, EntryOf(holdings, guard.version));
  }
  for (const auto& [version, failure] : parts_.versions.failures()) {
    EntryOf(holdings, version).set_failure(failure);
  }
  for (const auto& [version, failure] : parts_.protection.Failures()) {
    EntryOf(holdings, version).set_failure(failure);
  }
  for (const RottenSlab& slab : parts_.node.RottenSlabs()) {
    if (!parts_.versions.MayBeCommitted(slab.version)) continue;
    EntryOf(holdings, slab.version)
        .set_failure(fmt::format("rank {}: {}", slab.rank, slab.problem));
  }
  return holdings;
}

}  // namespace unreft::smp
