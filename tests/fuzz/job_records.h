// The records of a job of several nodes: one example of each, and what the daemon does with those
// that it takes from the meta store.
#pragma once

#include <fmt/format.h>
#include <unreft/cluster.pb.h>

#include <map>
#include <memory>
#include <string>

#include "base/bounds.h"
#include "base/check.h"
#include "ec/stripe_layout.h"
#include "meta/job_store.h"
#include "meta/record_checks.h"
#include "smp/job/cluster_records.h"
#include "smp/job/job_settings.h"
#include "smp/job/pins.h"
#include "smp/protect/group_view.h"

namespace unreft::fuzz {

// By the names of their keys.
inline std::map<std::string, std::shared_ptr<const google::protobuf::MessageLite>>
ExampleRecords() {
  std::map<std::string, std::shared_ptr<const google::protobuf::MessageLite>> records;
  const auto add = [&]<typename Message>(const std::string& name, Message message) {
    records[name] = std::make_shared<Message>(std::move(message));
  };
  StoreRecord store;
  store.set_format(meta::kStoreFormat);
  store.set_min_reader(meta::kStoreMinReader);
  store.set_store_id("0123456789abcdef");
  add("store", store);
  PresenceRecord presence;
  presence.set_slot(0);
  presence.set_incarnation("incarnation of 0");
  presence.set_session(1);
  presence.set_address("10.0.0.1:7000");
  presence.set_failure_domain("rack 1");
  presence.set_place(0);
  add("leader", presence);
  add("node/0", presence);
  SpareRecord spare;
  *spare.mutable_presence() = presence;
  spare.mutable_presence()->set_place(9);
  spare.set_lease(7);
  spare.set_memory_bytes(uint64_t{1} << 40);
  add("spare/9", spare);

  SettingsRecord settings;
  settings.set_format(meta::kSettingsFormat);
  settings.set_min_reader(meta::kSettingsMinReader);
  settings.set_nodes(4);
  settings.set_data_chunks(2);
  settings.set_parity_chunks(2);
  settings.set_address("10.0.0.1:7000");
  FormatRange& format = *settings.add_formats();
  format.set_name("slot");
  format.set_format(2);
  format.set_min_reader(2);
  add("settings", settings);
  RefusedRecord refused;
  refused.set_place(3);
  refused.set_address("10.0.0.4:7000");
  refused.set_why("parity_chunks is 0 here");
  add("refused/3", refused);

  SeedRecord seed;
  seed.set_store_id("0123456789abcdef");
  seed.set_epoch(2);
  add("seed", seed);

  ViewRecord view;
  view.set_number(3);
  CommitRecord commit;
  TimelineRecord timeline;
  Group& group = *view.add_groups();
  group.set_k(2);
  DecisionRecord& decision = *timeline.mutable_decision();
  for (uint64_t slot = 0; slot < 4; ++slot) {
    ViewMember& member = *view.add_members();
    member.set_slot(slot);
    member.set_incarnation(fmt::format("incarnation of {}", slot));
    member.set_lost(slot == 3);
    member.set_place(slot);
    group.add_slots(slot);
    Holder& holder = *commit.add_holders();
    holder.set_slot(slot);
    holder.add_ranks(slot);
    holder.set_lost(slot == 3);
    *decision.add_holders() = holder;
    AskingRank& asking = *timeline.add_asked();
    asking.set_rank(slot);
    asking.set_pid(4711);
    asking.set_request(1);
    *decision.add_asked() = asking;
  }
  view.set_exposure("node 3 is lost");
  add("view", view);
  commit.set_timeline(2);
  commit.set_step(41);
  commit.set_world(4);
  commit.set_view(3);
  *commit.mutable_groups() = view.groups();
  add("commit", commit);
  for (uint64_t opened = 1; opened <= 2; ++opened) {
    TimelineEntry& entry = *timeline.add_chain();
    entry.set_timeline(opened);
    entry.set_parent_timeline(opened - 1);
    entry.set_parent_step(opened == 1 ? 0 : 17);
  }
  timeline.set_closing(true);
  timeline.set_round(5);
  timeline.set_attempt(2);
  timeline.set_world(4);
  decision.set_round(4);
  decision.set_attempt(1);
  decision.set_kind(static_cast<uint32_t>(DecisionKind::kRestored));
  decision.set_timeline(2);
  decision.set_version_timeline(1);
  decision.set_version_step(17);
  add("timeline", timeline);
  AbandonRecord abandoned;
  abandoned.set_timeline(2);
  abandoned.set_after_step(17);
  abandoned.set_through_step(41);
  abandoned.set_reason("step 40: rank 1 skipped it");
  add("abandoned", abandoned);
  PinRecord pins;
  Pin& pin = *pins.add_pins();
  pin.set_timeline(1);
  pin.set_step(17);
  pin.set_owner("evaluation");
  pin.set_for_ms(60'000);
  pin.set_number(1);
  pins.set_newest_number(1);
  add("pins", pins);
  return records;
}

// Groups that a code can be made of, each slot in one of them.
inline void UseGroups(const google::protobuf::RepeatedPtrField<Group>& groups) {
  google::protobuf::RepeatedPtrField<Group> again;
  smp::SetGroups(smp::GroupsOf(groups), again);
  UNREFT_CHECK(again.size() == groups.size());
  for (const Group& group : groups) {
    for (const uint64_t slot : group.slots()) {
      const auto view = smp::FindGroup(groups, NodeSlot{slot});
      UNREFT_CHECK(view && view->slots.at(view->self).value == slot && view->shape.k > 0);
      for (const uint32_t member : view->Predecessors()) UNREFT_CHECK(member < view->members());
    }
  }
}

inline void UseRecord(const ViewRecord& view) { UseGroups(view.groups()); }

inline void UseRecord(const TimelineRecord& timeline) {
  // The next decision, which whoever reads the records then takes.
  TimelineRecord next = timeline;
  const Timeline newest = smp::ChainOf(timeline).newest();
  const Timeline opened = NextTimeline(newest, 7);
  smp::OpenTimeline(opened, {newest, Step{1}}, next);
  UNREFT_CHECK(opened > newest);
  UNREFT_CHECK(meta::CheckRecord(next).ok() == (opened.value <= kTimelineMax));
  const smp::JobDecision decision = smp::DecisionOf(timeline.decision());
  UNREFT_CHECK(decision.asked.size() == static_cast<size_t>(timeline.decision().asked_size()));
  (void)smp::ChainOf(timeline).IsLive(decision.version);
}

inline void UseRecord(const CommitRecord& commit) {
  UseGroups(commit.groups());
  google::protobuf::RepeatedPtrField<Holder> again;
  smp::SetHolders(smp::HoldersOf(commit.holders()), again);
  UNREFT_CHECK(again.size() == commit.holders_size());
}

inline void UseRecord(const PinRecord& pins) {
  PinRecord next = pins;
  PinRequest request;
  request.set_owner("evaluation");
  request.set_for_ms(1);
  (void)smp::ChangePins(request, {Timeline{1}, Step{17}}, 4, 2, next);
  request.set_unpin(true);
  (void)smp::ChangePins(request, {Timeline{1}, Step{17}}, 4, 2, next);
  smp::DropPins({1}, recovery::TimelineChain({{Timeline{1}, {}}}), next);
}

inline void UseRecord(const SettingsRecord& settings) {
  const smp::NodeOptions options;
  UNREFT_CHECK(smp::CompareSettings(settings, options).ok() ==
               smp::DifferencesFrom(settings, options).empty());
}

template <typename Message>
void UseRecord(const Message&) {}

inline void UseJobState(const meta::JobState& state) {
  const auto use = [](const auto& stored) {
    if (!stored.exists()) return;
    UNREFT_CHECK(meta::CheckRecord(stored.value).ok());
    UseRecord(stored.value);
  };
  UNREFT_CHECK(state.store_id.size() == 16);
  use(state.leader);
  use(state.view);
  use(state.timeline);
  use(state.commit);
  use(state.abandoned);
  use(state.pins);
  use(state.settings);
  for (const auto& [place, refused] : state.refused) use(refused);
  for (const auto& [slot, presence] : state.present) UNREFT_CHECK(meta::CheckRecord(presence).ok());
  for (const auto& [place, spare] : state.spares) use(spare);
}

}  // namespace unreft::fuzz
