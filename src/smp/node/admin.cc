#include "smp/node/admin.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_join.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "recovery/version_choice.h"
#include "smp/desk/node_memory.h"
#include "smp/desk/protection_watch.h"
#include "smp/job/cluster_records.h"
#include "smp/job/formation.h"
#include "smp/node/admin_resize.h"
#include "smp/node/json_text.h"

namespace unreft::smp {
namespace {

using Json = nlohmann::ordered_json;

// What the rank has, and how much of it a version takes from here.
void AddCaptured(const RankSession& session, Json& rank) {
  rank["registered"] = session.registration != nullptr;
  rank["last_captured_step"] = nullptr;
  if (session.last_captured) rank["last_captured_step"] = session.last_captured->value;
  rank["extras_bytes"] = session.captured_extras_bytes;
  if (session.registration == nullptr) return;
  uint64_t bytes = 0;
  uint64_t replicated = 0;
  uint64_t replicated_bytes = 0;
  uint64_t parts = 1;
  for (const TensorSpec& spec : session.registration->table.specs()) {
    bytes += ShardBytes(spec);
    if (spec.replica_count <= 1) continue;
    ++replicated;
    replicated_bytes += ShardBytes(spec);
    parts = std::max<uint64_t>(parts, spec.replica_count);
  }
  const layout::CapturePlan& plan = session.registration->plan;
  rank["tensors"] = session.registration->table.specs().size();
  rank["bytes"] = bytes;
  rank["captured_bytes"] = plan.data_bytes();
  rank["replicated_tensors"] = replicated;
  rank["replicated_bytes"] = replicated_bytes;
  // 1: all of them, since replicas were found to differ, or since there is no other.
  rank["replica_parts"] = plan.mode() == layout::CaptureMode::kFull ? 1 : parts;
}

Json RankJson(const RankSession& session) {
  Json rank;
  rank["rank"] = session.rank().value;
  rank["pid"] = session.life().pid;
  rank["connected"] = session.connected();
  rank["attempt"] = session.attempt().value;
  rank["timeline"] = NumberOf(session.timeline);
  rank["newest_step"] = session.newest_step.value;
  rank["captured"] = session.captured;
  rank["skipped"] = session.skipped;
  rank["given_up"] = session.given_up;
  rank["last_skip"] = session.last_skip;
  rank["last_given_up"] = session.last_given_up;
  AddCaptured(session, rank);
  rank["problem"] = std::string(session.capture_status().message());
  return rank;
}

Json SlotJson(const Slot& slot) {
  Json json;
  json["slot"] = slot.id.value;
  json["segment"] = slot.segment->name();
  json["rank"] = slot.owner.value;
  json["phase"] = std::string(SlotPhaseName(slot.phase));
  json["generation"] = slot.generation.value;
  json["timeline"] = NumberOf(slot.version.timeline);
  json["step"] = slot.version.step.value;
  json["bytes"] = slot.bytes();
  json["problem"] = slot.problem;
  return json;
}

Json CountersJson(const NodeState& state) {
  const NodeCounters& c = state.counters;
  Json json;
  json["slots_sealed"] = c.slots_sealed;
  json["versions_committed"] = c.versions_committed;
  json["versions_abandoned"] = c.versions_abandoned;
  json["snapshots_skipped"] = c.snapshots_skipped;
  json["decisions"] = c.decisions;
  json["decisions_failed"] = c.decisions_failed;
  json["sessions_refused"] = c.sessions_refused;
  json["bytes_sealed"] = c.bytes_sealed;
  json["device_checksum_mismatches"] = c.device_checksum_mismatches;
  json["slots_quarantined"] = state.slots->quarantined();
  json["record_writes_failed"] = state.kept->failed_writes();
  if (const TransportCounts* counts = state.seams.transport_counts) {
    json["node_read_bytes"] = counts->reads.bulk_bytes;
    json["node_read_bytes_lost"] = counts->reads.bulk_bytes_lost;
    json["node_reads_failed"] = counts->reads.failed();
    json["node_served_bytes"] = counts->reads_served.bulk_bytes;
  }
  return json;
}

Json ProtectionJson(const NodeState& state) {
  const JobProtection protection = ProtectionOf(state);
  Json json;
  json["state"] = std::string(ProtectionName(protection));
  json["why"] = protection.why_not;
  json["seconds_since_commit"] = nullptr;
  if (protection.since_commit) {
    json["seconds_since_commit"] = std::chrono::duration<double>(*protection.since_commit).count();
  }
  json["skipped"] = state.account.skipped();
  json["given_up"] = state.account.given_up();
  return json;
}

std::vector<recovery::SealedSlab> SealedSlabs(const NodeState& state) {
  std::vector<recovery::SealedSlab> slabs;
  for (const Slot* slot : state.slots->All()) {
    if (slot->phase == SlotPhase::kSealed)
      slabs.push_back({slot->version, slot->owner, slot->world});
  }
  return slabs;
}

// What a restart would restore, as far as is known without reading it, if it is not what was
// committed. In a job of several nodes the groups say it (`stands`).
void AddRestorable(const NodeState& state, Json& json) {
  json["restorable"] = json["committed"];
  if (json["committed"].is_null() || state.options.nodes > 1) return;
  const std::vector<Version> whole =
      recovery::WholeVersions(SealedSlabs(state), state.record->chain());
  if (std::ranges::find(whole, state.record->committed()) != whole.end()) return;
  json["restorable"] = nullptr;
  if (whole.empty()) return;
  json["restorable"] = {{"timeline", NumberOf(whole.front().timeline)},
                        {"step", whole.front().step.value}};
}

std::string ProblemOf(const NodeState& state) {
  std::vector<std::string> problems = {state.standing.problem, state.kept->problem(),
                                       state.kept->disk_problem()};
  std::erase(problems, "");
  return absl::StrJoin(problems, "; ");
}

// Why the node's groups protect less than was asked for, or less than whoever did not ask may
// think; and whether they stand no loss at all, though they were to.
void AddExposure(const NodeState& state, const Member* member, Json& json) {
  json["exposure"] = "";
  json["bears_no_loss"] = false;
  if (member == nullptr) return;
  if (state.options.parity_chunks == 0) {
    if (state.options.nodes > 1) {
      json["exposure"] =
          "no parities were asked for (--parity-chunks 0): a node that is lost takes what it holds "
          "with it";
    }
    return;
  }
  const ViewRecord& view = member->records().view.value;
  json["exposure"] = view.exposure();
  json["bears_no_loss"] = view.groups_size() > 0 && HasNoParities(view);
}

// Of the copies that are written without being asked for; null where none are. What there is only
// the node knows that leads.
Json DurableJson(const ExportDesk* exports, bool leads) {
  if (exports == nullptr || exports->own().policy().directory.empty()) return nullptr;
  const OwnCopies& own = exports->own();
  Json json;
  json["dir"] = own.policy().directory;
  json["every_s"] = std::chrono::duration<double>(own.policy().every).count();
  json["keep"] = own.policy().keep;
  json["leads"] = leads;
  json["newest"] = nullptr;
  json["age_s"] = nullptr;
  if (const auto& newest = own.newest(); newest && newest->version != Version{}) {
    json["newest"] = {{"timeline", NumberOf(newest->version.timeline)},
                      {"step", newest->version.step.value}};
    json["age_s"] = std::chrono::duration<double>(own.AgeOf(*newest)).count();
  }
  json["error"] = own.last_error();
  return json;
}

Json StatusJson(const AdminDesk& desk) {
  const NodeState& state = desk.state;
  const Member* const member = desk.member;
  Json json;
  json["job"] = state.options.job;
  json["node"] = state.options.node.value;
  json["version"] = state.options.software_version;
  json["pid"] = state.seams.processes.Self().pid;
  json["session"] = state.record->session().value;
  json["incarnation"] = absl::BytesToHexString(AsBytes(state.record->incarnation()));
  json["timeline"] = NumberOf(state.record->chain().newest());
  if (state.record->committed_world() == 0) {
    json["committed"] = nullptr;
  } else {
    json["committed"] = {{"timeline", NumberOf(state.record->committed().timeline)},
                         {"step", state.record->committed().step.value},
                         {"world", state.record->committed_world()}};
  }
  AddRestorable(state, json);
  json["closed"] = state.timeline_closed;
  json["problem"] = ProblemOf(state);
  json["starting"] = state.standing.is_starting;
  json["out"] = state.standing.is_out;
  json["nodes"] = state.options.nodes;
  json["insecure"] = !state.options.insecure.empty();
  json["insecure_why"] = state.options.insecure;
  json["peers_wire"] = state.options.peers_wire;
  json["store_wire"] = state.options.store_wire;
  json["protection"] = ProtectionJson(state);
  json["durable"] = DurableJson(desk.exports, member != nullptr && member->leads());
  AddExposure(state, member, json);
  json["bytes"] = state.memory->use().bytes + PromisedMemory(state).control_bytes;
  json["guard_bytes"] = state.memory->use(SegmentKind::kGuard).bytes;
  json["staging_bytes"] = state.memory->use(SegmentKind::kStaging).bytes;
  json["counters"] = CountersJson(state);
  json["ranks"] = Json::array();
  for (const auto& [rank, session] : state.sessions) json["ranks"].push_back(RankJson(*session));
  json["slots"] = Json::array();
  for (const Slot* slot : state.slots->All()) json["slots"].push_back(SlotJson(*slot));
  return json;
}

std::set<std::string> OwnersOf(const NodeState& state, Version version) {
  std::set<std::string> owners;
  if (!state.pins) return owners;
  for (const Pin& pin : state.pins->pins()) {
    if (VersionOf(pin) == version) owners.insert(pin.owner());
  }
  return owners;
}

Json VersionsJson(const NodeState& state) {
  std::map<Version, std::pair<uint64_t, std::set<uint64_t>>, std::greater<>> versions;
  for (const Slot* slot : state.slots->All()) {
    if (slot->phase != SlotPhase::kSealed) continue;
    auto& [world, ranks] = versions[slot->version];
    world = std::max(world, slot->world);
    ranks.insert(slot->owner.value);
  }
  Json json;
  json["versions"] = Json::array();
  for (const auto& [version, holders] : versions) {
    const auto& [world, ranks] = holders;
    json["versions"].push_back({{"timeline", NumberOf(version.timeline)},
                                {"timeline_id", RandomIdOf(version.timeline)},
                                {"step", version.step.value},
                                {"world", world},
                                {"ranks", ranks},
                                {"whole", ranks.size() == world},
                                {"live", state.record->chain().IsLive(version)},
                                {"committed", version == state.record->committed()},
                                {"pinned_by", OwnersOf(state, version)}});
  }
  return json;
}

Json PinJson(const Pin& pin) {
  return {{"timeline", NumberOf(Timeline{pin.timeline()})},
          {"step", pin.step()},
          {"owner", pin.owner()},
          {"for_ms", pin.for_ms()}};
}

// What one question has read.
struct Verified {
  uint64_t slots = 0;
  uint64_t guards = 0;
  uint64_t bytes = 0;
  std::vector<std::string> bad_guards;
};

Json VerifiedJson(const NodeState& state, const Verified& verified) {
  Json json;
  json["slots_checked"] = verified.slots;
  json["guards_checked"] = verified.guards;
  json["bytes"] = verified.bytes;
  json["bad"] = Json::array();
  for (const std::string& problem : verified.bad_guards) {
    json["bad"].push_back({{"slot", nullptr}, {"problem", problem}});
  }
  for (const Slot* slot : state.slots->All()) {
    if (slot->phase != SlotPhase::kQuarantined) continue;
    json["bad"].push_back({{"slot", slot->id.value}, {"problem", slot->problem}});
  }
  return json;
}

AdminReply Ok(const Json& json) { return AdminReply{absl::OkStatus(), JsonText(json)}; }

bool IsGuarded(const AdminDesk& desk, Version version) {
  return std::ranges::any_of(desk.protection.Held(), [&](const GuardHeld& guard) {
    return guard.complete && guard.version == version;
  });
}

// One guard after the other, the last first; one that has gone meanwhile is left out.
void VerifyGuards(const AdminDesk& desk, std::vector<Version> versions, Verified verified,
                  absl::AnyInvocable<void(AdminReply)> reply) {
  while (!versions.empty() && !IsGuarded(desk, versions.back())) versions.pop_back();
  if (versions.empty()) return reply(Ok(VerifiedJson(desk.state, verified)));
  const Version version = versions.back();
  versions.pop_back();
  ++verified.guards;
  desk.protection.Verify(
      version, [desk, version, versions = std::move(versions), verified = std::move(verified),
                reply = std::move(reply)](const absl::Status& status) mutable {
        if (!status.ok()) {
          verified.bad_guards.push_back(
              fmt::format("the guard of version {}: {}", version, status.message()));
        }
        VerifyGuards(desk, std::move(versions), std::move(verified), std::move(reply));
      });
}

void Verify(const AdminDesk& desk, absl::AnyInvocable<void(AdminReply)> reply) {
  std::vector<Slot*> sealed;
  Verified verified;
  for (Slot* slot : desk.state.slots->All()) {
    if (slot->phase != SlotPhase::kSealed) continue;
    sealed.push_back(slot);
    verified.bytes += slot->manifest->data_bytes;
  }
  verified.slots = sealed.size();
  desk.verifier.Verify(sealed, [desk, verified, reply = std::move(reply)](absl::Status) mutable {
    std::vector<Version> guarded;
    for (const GuardHeld& guard : desk.protection.Held()) {
      if (guard.complete) guarded.push_back(guard.version);
    }
    VerifyGuards(desk, std::move(guarded), std::move(verified), std::move(reply));
  });
}

// "pin" and "unpin".
void ChangePins(NodeState& state, const AdminRequest& request,
                absl::AnyInvocable<void(AdminReply)> reply) {
  const auto arguments = nlohmann::json::parse(request.arguments, nullptr,
                                               /*allow_exceptions=*/false);
  const auto number = [&](const char* key) {
    const auto found = arguments.find(key);
    return found != arguments.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
  };
  const auto owner = arguments.is_object() ? arguments.find("owner") : arguments.end();
  if (!arguments.is_object() || owner == arguments.end() || !owner->is_string()) {
    return reply(AdminReply{
        absl::InvalidArgumentError(fmt::format("{}: an object with an owner is needed, found '{}'",
                                               request.verb, request.arguments)),
        ""});
  }
  PinRequest pin;
  pin.set_owner(owner->get<std::string>());
  pin.set_unpin(request.verb == "unpin");
  pin.set_step(number("step"));
  pin.set_for_ms(number("for_ms"));
  state.coordinator->AskPins(std::move(pin),
                             [reply = std::move(reply)](absl::StatusOr<PinReply> answer) mutable {
                               if (!answer.ok()) return reply(AdminReply{answer.status(), ""});
                               Json json;
                               json["pins"] = Json::array();
                               for (const Pin& changed : answer->pins())
                                 json["pins"].push_back(PinJson(changed));
                               reply(Ok(json));
                             });
}

Json RewindJson(const RewindReply& answer) {
  Json json;
  json["versions"] = Json::array();
  for (const RewindVersion& version : answer.versions()) {
    json["versions"].push_back(
        {{"timeline", NumberOf(Timeline{version.timeline()})},
         {"step", version.step()},
         {"world", version.world()},
         {"committed", version.committed()},
         {"pinned_by",
          std::vector<std::string>(version.pinned_by().begin(), version.pinned_by().end())}});
  }
  json["order"] = nullptr;
  if (answer.order().timeline() != 0) {
    json["order"] = {{"timeline", NumberOf(Timeline{answer.order().timeline()})},
                     {"step", answer.order().step()}};
  }
  return json;
}

// Without arguments it is asked what could be restored.
void Rewind(NodeState& state, const AdminRequest& request,
            absl::AnyInvocable<void(AdminReply)> reply) {
  const auto arguments = nlohmann::json::parse(request.arguments, nullptr,
                                               /*allow_exceptions=*/false);
  RewindRequest rewind;
  const auto step = arguments.is_object() ? arguments.find("step") : arguments.end();
  const auto cancel = arguments.is_object() ? arguments.find("cancel") : arguments.end();
  const bool has_step = arguments.is_object() && step != arguments.end();
  const bool has_cancel = arguments.is_object() && cancel != arguments.end();
  if (!arguments.is_object() || (has_step && !step->is_number_unsigned()) ||
      (has_cancel && !cancel->is_boolean())) {
    return reply(AdminReply{
        absl::InvalidArgumentError(fmt::format(
            "rewind: an object with a step of 0 or more, or with cancel, is needed, found '{}'",
            request.arguments)),
        ""});
  }
  if (has_step) rewind.set_step(step->get<uint64_t>());
  if (has_cancel) rewind.set_cancel(cancel->get<bool>());
  state.coordinator->AskRewind(
      rewind, [reply = std::move(reply)](absl::StatusOr<RewindReply> answer) mutable {
        reply(answer.ok() ? Ok(RewindJson(*answer)) : AdminReply{answer.status(), ""});
      });
}

// Whether the operator wants it, whatever it costs.
bool IsForced(const AdminRequest& request) {
  const auto arguments = nlohmann::json::parse(request.arguments, nullptr,
                                               /*allow_exceptions=*/false);
  if (!arguments.is_object()) return false;
  const auto force = arguments.find("force");
  return force != arguments.end() && force->is_boolean() && force->get<bool>();
}

}  // namespace

void AnswerAdmin(const AdminDesk& desk, const AdminRequest& request,
                 absl::AnyInvocable<void(AdminReply)> reply) {
  NodeState& state = desk.state;
  if (request.verb == "status") return reply(Ok(StatusJson(desk)));
  if (request.verb == "versions") return reply(Ok(VersionsJson(state)));
  if (request.verb == "metrics")
    return reply(Ok({{"text", MetricsText(state, desk.member, desk.exports)}}));
  if (request.verb == "verify") return Verify(desk, std::move(reply));
  if (request.verb == "pin" || request.verb == "unpin") {
    return ChangePins(state, request, std::move(reply));
  }
  if (request.verb == "rewind") return Rewind(state, request, std::move(reply));
  if (request.verb == "resize") return AnswerResize(state, request, std::move(reply));
  if (request.verb == "fresh-start") {
    return state.coordinator->DeclareFreshStart(
        IsForced(request), [reply = std::move(reply)](absl::StatusOr<uint64_t> opens) mutable {
          if (!opens.ok()) return reply(AdminReply{opens.status(), ""});
          reply(Ok({{"timeline", *opens}}));
        });
  }
  reply(AdminReply{absl::InvalidArgumentError(fmt::format(
                       "'{}' is none of: status, cluster, versions, verify, pin, unpin, "
                       "rewind, resize, fresh-start, metrics, memory, plan, "
                       "plan-layout, export, export-status, export-cancel",
                       request.verb)),
                   ""});
}

}  // namespace unreft::smp
