// What the leader's rules are asked: records and reports as a test says them. No cluster, no clock,
// no store.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "smp/job/cluster_records.h"
#include "smp/job/facts.h"
#include "smp/job/move.h"
#include "smp/job/recorded.h"
#include "tests/unit/smp/board_telling.h"

namespace unreft::smp {

inline Version At(uint64_t timeline, uint64_t step) { return {Timeline{timeline}, Step{step}}; }

// Two nodes, RS(1,1), with rank i on node i; both are present, members, and have told that timeline
// 1 is the newest, in which nothing is committed.
class RulesFixture : public ::testing::Test {
 protected:
  static constexpr uint64_t kNodes = 2;

  RulesFixture() {
    options_.nodes = kNodes;
    options_.data_chunks = 1;
    options_.parity_chunks = 1;
    options_.replica_check_every = 0;
    records_.store_id = "store";
    records_.seed.modified = meta::Revision{1};
    records_.seed.value.set_store_id(records_.store_id);
    records_.seed.value.set_epoch(1);
    records_.revision = meta::Revision{9};
    records_.view.modified = meta::Revision{1};
    ViewRecord& view = records_.view.value;
    view.set_number(1);
    Group& group = *view.add_groups();
    group.set_k(1);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      group.add_slots(slot);
      Enter(slot);
      ViewMember& member = *view.add_members();
      member.set_slot(slot);
      member.set_incarnation(Memory(slot));
      member.set_place(slot);
    }
    records_.timeline.modified = meta::Revision{2};
    records_.timeline.value.add_chain()->set_timeline(1);
    for (uint64_t slot = 0; slot < kNodes; ++slot) Tell(slot);
  }

  static std::string Memory(uint64_t slot) { return fmt::format("memory {}", slot); }

  // --- who is there ---

  void Enter(uint64_t slot) {
    PresenceRecord& presence = records_.present[NodeSlot{slot}];
    presence.set_slot(slot);
    presence.set_incarnation(Memory(slot));
    presence.set_address(fmt::format("host{}", slot));
    presence.set_session(1);
  }
  // Longer than its grace.
  void Lose(uint64_t slot) {
    records_.present.erase(NodeSlot{slot});
    FollowAbsences();
    now_ += options_.lost_grace;
  }
  void FollowAbsences() { absences_.Follow(records_, records_.view.value, kNodes, now_); }
  void AddSpare(uint64_t place, const std::string& domain = "") {
    meta::Stored<SpareRecord>& spare = records_.spares[place];
    spare.modified = meta::Revision{3};
    spare.value.set_lease(1);
    spare.value.mutable_presence()->set_incarnation("spare memory");
    spare.value.mutable_presence()->set_failure_domain(domain);
  }

  // --- what they tell ---

  // As it is in `reports_`, at its newest.
  void Tell(uint64_t slot) {
    NodeReport& report = reports_[NodeSlot{slot}];
    report.set_session(1);
    report.set_incarnation(Memory(slot));
    report.set_newest_timeline(NewestTimeline(records_.timeline.value).value);
    report.set_view(1);
    TellBoard(board_, NodeSlot{slot}, report);
  }
  NodeReport& Report(uint64_t slot) { return reports_[NodeSlot{slot}]; }
  VersionHolding& Holding(uint64_t slot, Version version) {
    for (VersionHolding& holding : *Report(slot).mutable_versions()) {
      if (VersionOf(holding) == version) return holding;
    }
    VersionHolding& holding = *Report(slot).add_versions();
    SetVersion(version, holding);
    return holding;
  }
  void Seal(uint64_t slot, Version version) {
    SealedRank& sealed = *Holding(slot, version).add_sealed();
    sealed.set_rank(slot);
    sealed.set_world(kNodes);
    sealed.set_layout_digest(7 + slot);
    Tell(slot);
  }
  // A complete guard of both slabs.
  void Guard(uint64_t slot, Version version) {
    VersionHolding& holding = Holding(slot, version);
    holding.set_guarded(true);
    holding.set_coding(5);
    holding.set_data_chunks(1);
    for (uint64_t member = 0; member < kNodes; ++member) {
      EncodedMember& encoded = *holding.add_encoded();
      encoded.set_slot(member);
      encoded.set_incarnation(Memory(member));
    }
    DescriptionHolding& description = *holding.add_descriptions();
    description.set_slot(1 - slot);
    description.add_ranks(1 - slot);
    description.set_world(kNodes);
    Tell(slot);
  }
  // Sealed and guarded everywhere.
  void Protect(Version version) {
    for (uint64_t slot = 0; slot < kNodes; ++slot) Seal(slot, version);
    for (uint64_t slot = 0; slot < kNodes; ++slot) Guard(slot, version);
  }
  static layout::SlotManifest ManifestOf(uint64_t rank) {
    layout::SlotManifest manifest;
    manifest.rank = Rank{rank};
    manifest.world = kNodes;
    manifest.layout_digest = 7 + rank;
    manifest.tensors = {
        {.name = fmt::format("w{}", rank), .global_shape = {4}, .offset = {0}, .extent = {4}}};
    return manifest;
  }
  void LearnManifests() {
    for (uint64_t rank = 0; rank < kNodes; ++rank) manifests_.Keep(ManifestOf(rank));
  }
  void RecordCommit(Version version) {
    records_.commit.modified = meta::Revision{4};
    SetVersion(version, records_.commit.value);
    records_.commit.value.set_world(kNodes);
    *records_.commit.value.mutable_groups() = records_.view.value.groups();
  }

  // What the rule says of all this.
  Move Ask(Move (*rule)(const Facts&)) {
    const RollCall roll = CallRoll();
    return rule(FactsOf(roll));
  }
  RollCall CallRoll() const { return {records_.view.value, records_.present, board_.reports()}; }
  Facts FactsOf(const RollCall& roll) {
    return {.records = records_,
            .options = options_,
            .board = board_,
            .roll = roll,
            .now = now_,
            .newest_step = board_.NewestStep(NewestTimeline(records_.timeline.value)),
            .next_timeline = Timeline{NewestTimeline(records_.timeline.value).value + 1},
            .absences = absences_,
            .kept = kept_ ? &*kept_ : nullptr,
            .seed = seed_notes_,
            .pins = {.over = pins_over_, .asked = pin_asked_},
            .asked_since = asked_since_,
            .reading = reading_,
            .copies = copies_,
            .versions = versions_,
            .abandoning = abandoning_,
            .pace = pace_,
            .manifests = manifests_,
            .layouts = layouts_};
  }

  NodeOptions options_;
  meta::JobState records_;
  std::map<NodeSlot, NodeReport> reports_;
  Board board_;
  Time now_{std::chrono::hours(1)};
  SeedNotes seed_notes_;  // the store was read long ago
  Absences absences_{options_.lost_grace};
  std::optional<meta::RecordCopy> kept_;
  std::set<uint64_t> pins_over_;
  const PinRequest* pin_asked_ = nullptr;
  std::map<uint64_t, Time> asked_since_;
  RoundReading reading_;
  RoundCopies copies_{/*has_directory=*/false};
  VersionNotes versions_;
  AbandonNotes abandoning_;
  StepPace pace_;
  ManifestCache manifests_;
  LayoutCheck layouts_;
};

// Whether the move is none.
inline bool IsNone(const Move& move) { return !move.IsFinal() && move.ask_manifests.empty(); }

inline std::vector<std::string> TextsOf(const Move& move) {
  std::vector<std::string> texts;
  for (const Line& line : move.say) texts.push_back(line.text);
  return texts;
}

}  // namespace unreft::smp
