#include "smp/node/export_run.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"
#include "smp/job/copy_choice.h"
#include "smp/job/recorded.h"
#include "smp/node/export_formats.h"
#include "smp/node/export_part.h"
#include "smp/node/json_text.h"

namespace unreft::smp {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::minutes kPinFor(10);
constexpr std::chrono::minutes kPinAgainAfter(4);
constexpr std::chrono::minutes kStallMax(10);

}  // namespace

ExportRun::ExportRun(NodeState& state, Member& member, ExportWish wish,
                     absl::AnyInvocable<void()> ended)
    : state_(state),
      member_(member),
      wish_(std::move(wish)),
      ended_(std::move(ended)),
      id_(AsBytes(state.seams.random.NextId())),
      watch_(state, member.peers(), kCopyPartMethod, id_, kStallMax, PartWatch::Orders::kOnce,
             {.before_asking = [this] { return MayGoOn(); },
              .on_said = [this] { CheckEnd(); },
              .on_failed = [this](const absl::Status& why) { Fail(std::string(why.message())); }}),
      began_(state.seams.executor.Now()) {}

void ExportRun::Begin() {
  Unpin([this] {
    if (!IsUnderWay()) return;
    Pin([this](const absl::Status& status) {
      if (IsUnderWay()) OnPinned(status);
    });
  });
}

void ExportRun::OnPinned(const absl::Status& status) {
  if (!status.ok()) return Fail(std::string(status.message()));
  // Not the same again when one has failed: what is left of that may stand in the way.
  if (IsTheJobsOwn()) {
    wish_.directory = fmt::format("{}/timeline-{}-step-{}-{}", wish_.directory, version_.timeline,
                                  version_.step, absl::BytesToHexString(id_.substr(0, 2)));
  }
  Look();
}

// One for all that this daemon runs, and one for the job's own copies, whoever leads: what an
// earlier process has left pinned is found again.
std::string ExportRun::Owner() const {
  if (IsTheJobsOwn()) return "export-policy";
  return fmt::format("export-node{}", state_.options.node);
}

void ExportRun::Unpin(absl::AnyInvocable<void()> done) {
  PinRequest request;
  request.set_owner(Owner());
  request.set_unpin(true);
  // Whether there was anything to unpin or not: the pin that follows tells what stands in the way.
  member_.AskPins(std::move(request),
                  lifetime_.Bind([done = std::move(done)](const absl::StatusOr<PinReply>&) mutable {
                    if (done) done();
                  }));
}

void ExportRun::Pin(absl::AnyInvocable<void(absl::Status)> done) {
  PinRequest request;
  request.set_owner(Owner());
  request.set_step(world_ != 0 ? version_.step.value : wish_.step);
  request.set_for_ms(std::chrono::milliseconds(kPinFor).count());
  member_.AskPins(
      std::move(request),
      lifetime_.Bind([this, done = std::move(done)](absl::StatusOr<PinReply> answer) mutable {
        if (!answer.ok()) return done(answer.status());
        if (answer->pins_size() != 1) {
          return done(absl::InternalError("export: the leader has pinned no version"));
        }
        const Version pinned = VersionOf(answer->pins(0));
        if (world_ != 0 && pinned != version_) {
          return done(absl::FailedPreconditionError(
              fmt::format("version {} is pinned by now, needed {}", pinned, version_)));
        }
        version_ = pinned;
        pinned_ = state_.seams.executor.Now();
        done(absl::OkStatus());
      }));
}

void ExportRun::Look() {
  phase_ = Phase::kLooking;
  for (const auto& [slot, presence] : member_.job().present) awaited_.insert(slot);
  CopyPartRequest request;
  request.set_what(CopyPartRequest::LOOK);
  request.set_timeline(version_.timeline.value);
  request.set_step(version_.step.value);
  const std::set<NodeSlot> nodes = awaited_;
  if (nodes.empty()) return Fail("no node of the job is present, by what the meta store says");
  for (const NodeSlot node : nodes) {
    watch_.Call(node, request, [this, node](const absl::StatusOr<CopyPartReply>& reply) {
      if (phase_ != Phase::kLooking) return;
      // Of one that does not answer the slabs are missing, which is said below.
      if (reply.ok() && reply->world() <= state_.options.ranks_max) {
        for (const uint64_t rank : reply->ranks()) ranks_[node].insert(rank);
        world_ = std::max(world_, reply->world());
      }
      awaited_.erase(node);
      if (awaited_.empty()) OnLooked();
    });
  }
}

void ExportRun::OnLooked() {
  std::set<uint64_t> found;
  for (const auto& [node, ranks] : ranks_) found.insert(ranks.begin(), ranks.end());
  std::set<uint64_t> missing;
  for (uint64_t rank = 0; rank < world_; ++rank) {
    if (!found.contains(rank)) missing.insert(rank);
  }
  if (world_ == 0) {
    return Fail(fmt::format("no node has a slab of version {}", version_));
  }
  if (!missing.empty() && !PlanDecoding(missing)) {
    return Fail(fmt::format(
        "version {} of {} ranks: no node that answers has the slabs of ranks {}, and of a version "
        "that is not the newest lost slabs are not decoded; the next version that is committed can "
        "be exported",
        version_, world_, fmt::join(missing, ", ")));
  }
  StartAll();
}

// Each by the node that has the least to write so far. Who had them is recorded of the newest
// commit alone.
bool ExportRun::PlanDecoding(const std::set<uint64_t>& lost) {
  const CommitRecord& commit = member_.records().commit.value;
  if (VersionOf(commit) != version_) return false;
  std::set<uint64_t> known;
  for (const recovery::SlabHolder& of : HoldersOf(commit.holders())) {
    CopyHolder& holder = holders_.emplace_back();
    holder.set_slot(of.slot.value);
    for (const Rank rank : of.ranks) {
      holder.add_ranks(rank.value);
      if (!lost.contains(rank.value)) continue;
      known.insert(rank.value);
      holder.set_is_lost(true);
    }
  }
  if (known != lost) return false;
  std::map<NodeSlot, size_t> writes;
  for (const auto& [node, ranks] : ranks_) writes[node] = ranks.size();
  for (const uint64_t rank : lost) {
    const auto idlest =
        std::ranges::min_element(writes, {}, [](const auto& of_node) { return of_node.second; });
    decode_[idlest->first].insert(rank);
    ++idlest->second;
  }
  return true;
}

void ExportRun::StartAll() {
  // The order names the run and the chain of now, and since the pin a fresh start may have been
  // declared, or another version decided.
  const TimelineRecord& timeline = member_.records().timeline.value;
  if (!ChainOf(timeline).IsLive(version_)) {
    return Fail(fmt::format("version {} was given up meanwhile: the job goes on in timeline {}",
                            version_, NewestTimeline(timeline)));
  }
  phase_ = Phase::kWriting;
  std::map<uint64_t, NodeSlot> homes;  // by rank: the first that has it
  for (const auto& [node, ranks] : ranks_) {
    for (const uint64_t rank : ranks) homes.try_emplace(rank, node);
  }
  for (const auto& [node, ranks] : decode_) {
    for (const uint64_t rank : ranks) homes.emplace(rank, node);
  }
  std::set<NodeSlot> writers = {state_.options.node};  // it leads
  for (const auto& [rank, node] : homes) writers.insert(node);
  std::map<NodeSlot, CopyPartRequest> orders;
  for (const NodeSlot node : writers) orders[node] = OrderFor(node, homes);
  *orders[state_.options.node].mutable_lead() = LeadOf(writers);
  state_.seams.log.Info("export: version {} of {} ranks is written to {} by {} nodes", version_,
                        world_, CleanText(wish_.directory, kTextBytesMax), writers.size());
  watch_.Begin(orders);
}

CopyPartRequest ExportRun::OrderFor(NodeSlot node,
                                    const std::map<uint64_t, NodeSlot>& homes) const {
  CopyPartRequest request;
  request.set_what(CopyPartRequest::START);
  request.set_id(id_);
  request.set_node(node.value);
  request.set_timeline(version_.timeline.value);
  request.set_step(version_.step.value);
  request.set_directory(wish_.directory);
  request.set_bytes_per_s(wish_.bytes_per_s);
  request.set_awaits_decoding(!decode_.empty());
  for (const auto& [rank, home] : homes) {
    if (home == node) request.add_ranks(rank);
  }
  const auto lost = decode_.find(node);
  if (lost == decode_.end()) return request;
  for (const uint64_t rank : lost->second) request.add_decode(rank);
  for (const CopyHolder& holder : holders_) *request.add_holders() = holder;
  return request;
}

CopyLead ExportRun::LeadOf(const std::set<NodeSlot>& writers) const {
  CopyLead lead;
  CopyOrder& order = *lead.mutable_order();
  order.set_job(state_.options.job);
  order.set_id(id_);
  order.set_timeline(version_.timeline.value);
  order.set_step(version_.step.value);
  order.set_world(world_);
  order.set_software_version(state_.options.software_version);
  order.set_is_own(IsTheJobsOwn());
  order.set_format(wish_.format);
  NameRun(member_.records().timeline.value, order);
  for (const NodeSlot writer : writers) lead.add_nodes(writer.value);
  for (const std::string& mapping : wish_.map) lead.add_map(mapping);
  lead.set_keep(wish_.keep);
  return lead;
}

bool ExportRun::MayGoOn() {
  if (phase_ != Phase::kWriting) return false;
  if (IsTheJobsOwn() && !member_.leads()) {
    Fail("this node does not lead any more");
    return false;
  }
  if (state_.seams.executor.Now() - pinned_ >= kPinAgainAfter) PinAgain();
  return true;
}

// A leader that does not answer is asked again until the pin's time is up.
void ExportRun::PinAgain() {
  pinned_ += kPinAgainAfter / 4;
  Pin([this](const absl::Status& status) {
    if (status.ok() || phase_ != Phase::kWriting) return;
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) {
      return Fail(std::string(status.message()));
    }
    state_.seams.log.Warn("export: the pin of version {} was not renewed: {}", version_,
                          status.message());
  });
}

// Who leads is done when the whole copy is.
void ExportRun::CheckEnd() {
  const CopyPartReply& lead = watch_.said().at(state_.options.node);
  if (!lead.is_done()) return;
  phase_ = Phase::kDone;
  state_.seams.log.Info("export: version {} is complete in {}: {} tensors, {} bytes", version_,
                        CleanText(wish_.directory, kTextBytesMax), lead.finished().tensors(),
                        lead.finished().bytes());
  End();
}

void ExportRun::Fail(const std::string& why) {
  error_ = why;
  const bool is_writing = phase_ == Phase::kWriting;
  phase_ = Phase::kFailed;
  state_.seams.log.Warn("export: no copy of version {} was made in {}: {}", version_,
                        CleanText(wish_.directory, kTextBytesMax), why);
  if (is_writing) watch_.Stop();
  End();
}

void ExportRun::End() {
  end_ = state_.seams.executor.Now();
  watch_.End();
  // By the name of the job's own whoever leads now may have pinned a version. Else the time of what
  // this run has pinned runs out.
  if (!IsTheJobsOwn() || member_.leads()) Unpin(nullptr);
  ended_();
}

Json ExportRun::Describe() const {
  static constexpr std::array<const char*, 5> kStates = {"pinning", "looking", "writing", "done",
                                                         "failed"};
  Json json;
  json["id"] = absl::BytesToHexString(id_);
  json["state"] = kStates[static_cast<size_t>(phase_)];
  json["dir"] = wish_.directory;
  json["format"] = ExportFormatName(wish_.format);
  json["timeline"] = NumberOf(version_.timeline);
  json["step"] = version_.step.value;
  json["world"] = world_;
  json["nodes"] = watch_.said().size();
  uint64_t written = 0;
  uint64_t bytes = 0;
  for (const auto& [node, said] : watch_.said()) {
    written += said.written();
    bytes += said.bytes();
  }
  json["written"] = written;
  json["bytes"] = bytes;
  const Time now = state_.seams.executor.Now();
  const Time until = end_.value_or(now);
  json["seconds"] = std::chrono::duration<double>(until - began_).count();
  json["seconds_since"] = std::chrono::duration<double>(now - until).count();
  json["error"] = error_;
  if (phase_ == Phase::kDone) {
    json["tensors"] = finished().tensors();
    json["values"] = finished().values();
    json["copy_bytes"] = finished().bytes();
    json["left_out"] =
        std::vector<std::string>(finished().left_out().begin(), finished().left_out().end());
    json["tensors_left_out"] = finished().tensors_left_out();
    json["has_index"] = finished().has_index();
  }
  return json;
}

const CopyFinished& ExportRun::finished() const {
  return watch_.said().at(state_.options.node).finished();
}

void ExportRun::OnPartEnded(const CopyPartReply& said) {
  if (!HasFailed() || !said.has_finished()) return;
  state_.seams.log.Info("export: version {} is complete in {} all the same", version_,
                        CleanText(wish_.directory, kTextBytesMax));
  watch_.Note(state_.options.node, said);
  phase_ = Phase::kDone;
  error_.clear();
}

}  // namespace unreft::smp
