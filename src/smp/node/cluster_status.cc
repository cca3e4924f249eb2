#include "smp/node/cluster_status.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>
#include <utility>

#include "base/text.h"
#include "smp/job/cluster_records.h"
#include "smp/job/formation.h"
#include "smp/job/recorded.h"
#include "smp/node/admin_resize.h"
#include "smp/node/json_text.h"

namespace unreft::smp {
namespace {

using Json = nlohmann::ordered_json;

// Every slot of the job: the members of the view, and who is present before there is one.
Json MembersJson(const NodeState& state, const meta::JobState& job) {
  std::map<NodeSlot, Json> members;
  for (uint64_t slot = 0; slot < state.options.nodes; ++slot) {
    members[NodeSlot{slot}] = {{"slot", slot},       {"present", false}, {"lost", false},
                               {"left_out", false},  {"to_come", false}, {"incarnation", ""},
                               {"session", nullptr}, {"address", ""},    {"failure_domain", ""},
                               {"place", slot}};
  }
  for (const ViewMember& member : job.view.value.members()) {
    Json& entry = members[NodeSlot{member.slot()}];
    entry["slot"] = member.slot();
    entry["lost"] = member.lost();
    entry["left_out"] = IsLeftOut(job.view.value, NodeSlot{member.slot()});
    entry["to_come"] = HasNotCome(member);
    entry["incarnation"] = absl::BytesToHexString(member.incarnation());
    entry["failure_domain"] = member.failure_domain();
    entry["place"] = PlaceOf(member);
  }
  for (const auto& [slot, presence] : job.present) {
    Json& entry = members[slot];
    entry["slot"] = slot.value;
    entry["present"] = true;
    entry["to_come"] = false;
    entry["incarnation"] = absl::BytesToHexString(presence.incarnation());
    entry["session"] = presence.session();
    entry["address"] = presence.address();
    entry["failure_domain"] = presence.failure_domain();
    entry["place"] = PlaceOf(presence);
  }
  Json json = Json::array();
  for (auto& [slot, entry] : members) json.push_back(std::move(entry));
  return json;
}

// Those that wait.
Json SparesJson(const meta::JobState& job) {
  Json json = Json::array();
  for (const auto& [place, spare] : job.spares) {
    const PresenceRecord& presence = spare.value.presence();
    json.push_back({{"place", place},
                    {"incarnation", absl::BytesToHexString(presence.incarnation())},
                    {"address", presence.address()},
                    {"failure_domain", presence.failure_domain()},
                    {"memory_bytes", spare.value.memory_bytes()}});
  }
  return json;
}

// Whose memory is not the one that the view names for their slot.
Json WaitingJson(const meta::JobState& job) {
  Json json = Json::array();
  for (const auto& [place, waiting] : job.waiting) {
    const PresenceRecord& presence = waiting.value.presence();
    json.push_back({{"place", place},
                    {"slot", presence.slot()},
                    {"incarnation", absl::BytesToHexString(presence.incarnation())},
                    {"address", presence.address()},
                    {"ranks", waiting.value.ranks()}});
  }
  return json;
}

// That are not started like the job.
Json RefusedJson(const meta::JobState& job) {
  Json json = Json::array();
  for (const auto& [place, refused] : job.refused) {
    json.push_back({{"place", place},
                    {"address", refused.value.address()},
                    {"why", CleanText(refused.value.why(), kTextBytesMax)}});
  }
  return json;
}

Json GroupJson(const Group& group) {
  Json json;
  json["slots"] = Json::array();
  for (const uint64_t slot : group.slots()) json["slots"].push_back(slot);
  json["k"] = group.k();
  json["m"] = group.slots_size() - static_cast<int>(group.k());
  return json;
}

Json CommittedJson(uint64_t timeline, uint64_t step, uint64_t world) {
  if (world == 0) return nullptr;
  return {{"timeline", NumberOf(Timeline{timeline})}, {"step", step}, {"world", world}};
}

Json ClusterJson(const NodeState& state, const Member& member) {
  const meta::JobState& job = member.job();
  const TimelineRecord& timeline = job.timeline.value;
  Json json;
  json["job"] = state.options.job;
  json["node"] = state.options.node.value;
  json["nodes"] = state.options.nodes;
  json["store"] = {{"ready", member.store_ready()},
                   {"problem", std::string(member.store_status().message())},
                   {"revision", job.revision.value}};
  json["data_chunks"] = state.options.data_chunks;
  json["parity_chunks"] = state.options.parity_chunks;
  json["pins"] = state.options.pins;
  json["peers_wire"] = state.options.peers_wire;
  json["store_wire"] = state.options.store_wire;
  json["leader"] = nullptr;
  if (job.leader.exists()) json["leader"] = job.leader.value.slot();
  json["view"] = job.view.value.number();
  json["exposure"] = job.view.value.exposure();
  json["timeline"] = NumberOf(NewestTimeline(timeline));
  json["closed"] = timeline.closing();
  json["resize"] = ResizeJson(timeline);
  json["members"] = MembersJson(state, job);
  json["spares"] = SparesJson(job);
  json["waiting"] = WaitingJson(job);
  json["refused"] = RefusedJson(job);
  json["committed"] =
      CommittedJson(job.commit.value.timeline(), job.commit.value.step(), job.commit.value.world());
  json["restorable"] = nullptr;
  json["restorable_known"] = false;
  json["groups"] = Json::array();
  for (const Group& group : job.view.value.groups()) json["groups"].push_back(GroupJson(group));
  return json;
}

// The committed version and its groups by the leader's words, which fit together.
void AddExposure(const ExposureReply& exposure, Json& json) {
  json["committed"] = CommittedJson(exposure.timeline(), exposure.step(), exposure.world());
  json["restorable"] = CommittedJson(exposure.restorable_timeline(), exposure.restorable_step(),
                                     exposure.restorable_world());
  json["restorable_known"] = exposure.restorable_known();
  json["groups"] = Json::array();
  for (const GroupExposure& group : exposure.groups()) {
    Json entry = GroupJson(group.group());
    entry["stands"] = nullptr;
    if (exposure.world() != 0) entry["stands"] = group.stands();
    json["groups"].push_back(std::move(entry));
  }
}

}  // namespace

void AnswerCluster(const NodeState& state, Member& member,
                   absl::AnyInvocable<void(AdminReply)> reply) {
  if (state.options.has_own_store) {
    return reply(AdminReply{absl::FailedPreconditionError(fmt::format(
                                "job {} is of one node, it has no meta store", state.options.job)),
                            ""});
  }
  member.AskExposure([json = ClusterJson(state, member),
                      reply = std::move(reply)](absl::StatusOr<ExposureReply> exposure) mutable {
    json["problem"] = std::string(exposure.status().message());
    if (exposure.ok()) {
      AddExposure(*exposure, json);
    } else {
      for (Json& group : json["groups"]) group["stands"] = nullptr;
    }
    reply(AdminReply{absl::OkStatus(), JsonText(json)});
  });
}

}  // namespace unreft::smp
