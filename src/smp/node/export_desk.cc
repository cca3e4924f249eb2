#include "smp/node/export_desk.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"
#include "smp/node/json_text.h"

namespace unreft::smp {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kVerbs = {"export", "export-status", "export-cancel"};
constexpr char kMethod[] = "copy-part";
constexpr std::chrono::milliseconds kAskEvery(500);
constexpr int kSilentMax = 10;  // so often one in a row does not answer
constexpr std::chrono::minutes kPinFor(10);
constexpr std::chrono::seconds kTickEvery(1);
constexpr Duration kPolicyAgainAfter = std::chrono::minutes(1);  // after a failure, at most
constexpr std::chrono::seconds kSurveyAgainAfter(5);             // the drain is busy
constexpr std::chrono::minutes kStallMax(10);
constexpr std::chrono::minutes kUnaskedMax(1);
constexpr std::chrono::minutes kPinAgainAfter(4);
constexpr size_t kDirectoryBytesMax = 4000;

// What a request for a copy says.
struct Wish {
  std::string directory;
  uint64_t step = 0;
  uint64_t bytes_per_s = 0;
  std::vector<std::string> map;
};

absl::StatusOr<Wish> ParseWish(const std::string& text) {
  const Json arguments = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto find = [&](const char* key) -> const Json* {
    if (!arguments.is_object()) return nullptr;
    const auto found = arguments.find(key);
    return found == arguments.end() ? nullptr : &*found;
  };
  Wish wish;
  const Json* const directory = find("dir");
  if (directory != nullptr && directory->is_string()) wish.directory = *directory;
  if (!wish.directory.starts_with('/') || wish.directory.size() > kDirectoryBytesMax ||
      CleanText(wish.directory) != wish.directory) {
    return absl::InvalidArgumentError(
        fmt::format("export: needed the absolute path of a directory, of {} bytes of UTF-8 at most "
                    "and without control characters, found '{}'",
                    kDirectoryBytesMax, CleanText(wish.directory, kTextBytesMax)));
  }
  for (const auto& [key, into] :
       {std::pair("step", &wish.step), std::pair("bytes_per_s", &wish.bytes_per_s)}) {
    const Json* const number = find(key);
    if (number == nullptr) continue;
    if (!number->is_number_unsigned()) {
      return absl::InvalidArgumentError(
          fmt::format("export: '{}' needs a number of 0 or more, found one of type {}", key,
                      number->type_name()));
    }
    *into = *number;
  }
  if (const Json* const map = find("map"); map != nullptr && map->is_array()) {
    for (const Json& mapping : *map) {
      if (mapping.is_string()) wish.map.push_back(mapping);
    }
  }
  return wish;
}

}  // namespace

ExportDesk::ExportDesk(NodeState& state, Member& member, DrainProcess* drain, ExportPolicy policy)
    : state_(state), member_(member), drain_(drain), policy_(std::move(policy)) {
  member_.peers().Answer<CopyPartRequest, CopyPartReply>(
      kMethod, [this](NodeSlot, CopyPartRequest request, auto done) {
        OnPartRequest(request, std::move(done));
      });
  if (drain_ != nullptr && !policy_.directory.empty()) TickLater();
}

ExportDesk::~ExportDesk() {
  if (drain_ != nullptr) drain_->Stop();  // which outlives this
  state_.seams.executor.Cancel(tick_);
  if (run_) state_.seams.executor.Cancel(run_->timer);
}

bool ExportDesk::Answers(const std::string& verb) {
  return std::ranges::find(kVerbs, verb) != kVerbs.end();
}

void ExportDesk::Answer(const AdminRequest& request, Reply reply) {
  if (request.verb == "export") return Begin(request, std::move(reply));
  if (request.verb == "export-cancel") {
    if (!IsUnderWay()) {
      return reply(AdminReply{
          absl::FailedPreconditionError("export: this daemon runs none that could be cancelled"),
          ""});
    }
    Fail("it was cancelled");
  }
  reply(AdminReply{absl::OkStatus(), StatusText()});
}

bool ExportDesk::IsUnderWay() const {
  return run_ && run_->state != Run::State::kDone && run_->state != Run::State::kFailed;
}

void ExportDesk::Begin(const AdminRequest& request, Reply reply) {
  absl::StatusOr<Wish> wish = ParseWish(request.arguments);
  if (!wish.ok()) return reply(AdminReply{wish.status(), ""});
  if (IsUnderWay()) {
    return reply(AdminReply{
        absl::FailedPreconditionError(fmt::format(
            "export: this daemon is writing version {} to {}: wait for it, or `unreft export "
            "--cancel`",
            run_->version, CleanText(run_->directory, kTextBytesMax))),
        ""});
  }
  Run run;
  run.directory = std::move(wish->directory);
  run.step = wish->step;
  run.bytes_per_s = wish->bytes_per_s;
  run.map = std::move(wish->map);
  BeginRun(std::move(run));
  reply(AdminReply{absl::OkStatus(), StatusText()});  // what comes of it "export-status" says
}

void ExportDesk::BeginRun(Run run) {
  run_ = std::move(run);
  run_->id = AsBytes(state_.seams.random.NextId());
  run_->began = state_.seams.executor.Now();
  run_->moved = run_->began;
  Unpin([this, id = run_->id] {
    if (run_->id != id || !IsUnderWay()) return;
    Pin([this, id](const absl::Status& status) {
      if (run_->id != id || !IsUnderWay()) return;
      if (!status.ok()) return Fail(std::string(status.message()));
      // Not the same again when one has failed: what is left of that may stand in the way.
      if (run_->keep != 0) {
        run_->directory =
            fmt::format("{}/timeline-{}-step-{}-{}", policy_.directory, run_->version.timeline,
                        run_->version.step, absl::BytesToHexString(run_->id.substr(0, 2)));
      }
      Look();
    });
  });
}
// One for all that this daemon runs, and one for the job's own copies, whoever leads: what an
// earlier process has left pinned is found again.
std::string ExportDesk::Owner() const {
  if (run_->keep != 0) return "export-policy";
  return fmt::format("export-node{}", state_.options.node);
}

void ExportDesk::Unpin(absl::AnyInvocable<void()> done) {
  PinRequest request;
  request.set_owner(Owner());
  request.set_unpin(true);
  // Whether there was anything to unpin or not: the pin that follows tells what stands in the way.
  member_.AskPins(std::move(request),
                  lifetime_.Bind([done = std::move(done)](const absl::StatusOr<PinReply>&) mutable {
                    if (done) done();
                  }));
}

void ExportDesk::Pin(absl::AnyInvocable<void(absl::Status)> done) {
  PinRequest request;
  request.set_owner(Owner());
  request.set_step(run_->world != 0 ? run_->version.step.value : run_->step);
  request.set_for_ms(std::chrono::milliseconds(kPinFor).count());
  member_.AskPins(std::move(request), lifetime_.Bind([this, id = run_->id, done = std::move(done)](
                                                         absl::StatusOr<PinReply> answer) mutable {
    if (run_->id != id) return;
    if (!answer.ok()) return done(answer.status());
    if (answer->pins_size() != 1) {
      return done(absl::InternalError("export: the leader has pinned no version"));
    }
    const Version pinned = VersionOf(answer->pins(0));
    if (run_->world != 0 && pinned != run_->version) {
      return done(absl::FailedPreconditionError(
          fmt::format("version {} is pinned by now, needed {}", pinned, run_->version)));
    }
    run_->version = pinned;
    run_->pinned = state_.seams.executor.Now();
    done(absl::OkStatus());
  }));
}

void ExportDesk::Call(NodeSlot node, const CopyPartRequest& request,
                      absl::AnyInvocable<void(absl::StatusOr<CopyPartReply>)> done) {
  member_.peers().Call(
      node, kMethod, request.SerializeAsString(), state_.options.call_timeout,
      lifetime_.Bind([done = std::move(done)](const absl::StatusOr<std::string>& bytes) mutable {
        if (!bytes.ok()) return done(bytes.status());
        CopyPartReply reply;
        if (!reply.ParseFromString(*bytes)) {
          return done(absl::InvalidArgumentError("its answer does not parse"));
        }
        done(std::move(reply));
      }));
}

void ExportDesk::Look() {
  run_->state = Run::State::kLooking;
  for (const auto& [slot, presence] : member_.job().present) run_->awaited.insert(slot);
  CopyPartRequest request;
  request.set_what(CopyPartRequest::LOOK);
  request.set_timeline(run_->version.timeline.value);
  request.set_step(run_->version.step.value);
  const std::set<NodeSlot> nodes = run_->awaited;
  if (nodes.empty()) return Fail("no node of the job is present, by what the meta store says");
  for (const NodeSlot node : nodes) {
    Call(node, request, [this, node, id = run_->id](const absl::StatusOr<CopyPartReply>& reply) {
      if (run_->id != id || run_->state != Run::State::kLooking) return;
      // Of one that does not answer the slabs are missing, which is said below.
      if (reply.ok() && reply->world() <= state_.options.ranks_max) {
        for (const uint64_t rank : reply->ranks()) run_->ranks[node].insert(rank);
        run_->world = std::max(run_->world, reply->world());
      }
      run_->awaited.erase(node);
      if (run_->awaited.empty()) OnLooked();
    });
  }
}

void ExportDesk::OnLooked() {
  std::set<uint64_t> found;
  for (const auto& [node, ranks] : run_->ranks) found.insert(ranks.begin(), ranks.end());
  std::vector<uint64_t> missing;
  for (uint64_t rank = 0; rank < run_->world; ++rank) {
    if (!found.contains(rank)) missing.push_back(rank);
  }
  if (run_->world == 0) {
    return Fail(fmt::format("no node has a slab of version {}", run_->version));
  }
  if (!missing.empty()) {
    return Fail(fmt::format(
        "version {} of {} ranks: no node that answers has the slabs of ranks {}; the next version "
        "that is committed can be exported",
        run_->version, run_->world, fmt::join(missing, ", ")));
  }
  StartAll();
}

void ExportDesk::StartAll() {
  run_->state = Run::State::kWriting;
  std::map<uint64_t, NodeSlot> homes;  // by rank: the first that has it
  for (const auto& [node, ranks] : run_->ranks) {
    for (const uint64_t rank : ranks) homes.try_emplace(rank, node);
  }
  std::set<NodeSlot> writers = {state_.options.node};  // it leads
  for (const auto& [rank, node] : homes) writers.insert(node);
  for (const NodeSlot node : writers) run_->said[node].set_is_running(true);
  for (const NodeSlot node : writers) Start(node, homes);
  state_.seams.log.Info("export: version {} of {} ranks is written to {} by {} nodes",
                        run_->version, run_->world, CleanText(run_->directory, kTextBytesMax),
                        writers.size());
  AskLater();
}

void ExportDesk::Start(NodeSlot node, const std::map<uint64_t, NodeSlot>& homes) {
  CopyPartRequest request;
  request.set_what(CopyPartRequest::START);
  request.set_id(run_->id);
  request.set_node(node.value);
  request.set_timeline(run_->version.timeline.value);
  request.set_step(run_->version.step.value);
  request.set_directory(run_->directory);
  request.set_bytes_per_s(run_->bytes_per_s);
  for (const auto& [rank, home] : homes) {
    if (home == node) request.add_ranks(rank);
  }
  if (node == state_.options.node) {
    CopyLead& lead = *request.mutable_lead();
    CopyOrder& order = *lead.mutable_order();
    order.set_job(state_.options.job);
    order.set_id(run_->id);
    order.set_timeline(run_->version.timeline.value);
    order.set_step(run_->version.step.value);
    order.set_world(run_->world);
    order.set_software_version(state_.options.software_version);
    order.set_is_own(run_->keep != 0);
    for (const auto& [writer, said] : run_->said) lead.add_nodes(writer.value);
    for (const std::string& mapping : run_->map) lead.add_map(mapping);
    lead.set_keep(run_->keep);
  }
  Call(node, request, [this, node, id = run_->id](const absl::StatusOr<CopyPartReply>& reply) {
    if (run_->id != id || !IsUnderWay() || reply.ok()) return;
    Fail(fmt::format("node {}: {}", node, reply.status().message()));
  });
}

void ExportDesk::AskLater() {
  run_->timer = state_.seams.executor.After(kAskEvery, lifetime_.Bind([this, id = run_->id] {
    if (run_->id != id || run_->state != Run::State::kWriting) return;
    const Time now = state_.seams.executor.Now();
    if (run_->keep != 0 && !member_.leads()) return Fail("this node does not lead any more");
    if (now - run_->moved >= kStallMax) {
      return Fail("nothing was written for ten minutes: the storage does not answer");
    }
    if (now - run_->pinned >= kPinAgainAfter) PinAgain();
    AskAll();
    AskLater();
  }));
}

// A leader that does not answer is asked again until the pin's time is up.
void ExportDesk::PinAgain() {
  run_->pinned += kPinAgainAfter / 4;
  Pin([this, id = run_->id](const absl::Status& status) {
    if (status.ok() || run_->id != id || run_->state != Run::State::kWriting) return;
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) {
      return Fail(std::string(status.message()));
    }
    state_.seams.log.Warn("export: the pin of version {} was not renewed: {}", run_->version,
                          status.message());
  });
}

void ExportDesk::AskAll() {
  CopyPartRequest request;
  request.set_what(CopyPartRequest::ASK);
  request.set_id(run_->id);
  for (const auto& [node, said] : run_->said) {
    if (said.is_done()) continue;
    Call(node, request, [this, node = node, id = run_->id](const auto& reply) {
      if (run_->id == id && run_->state == Run::State::kWriting) OnSaid(node, reply);
    });
  }
}

void ExportDesk::OnSaid(NodeSlot node, const absl::StatusOr<CopyPartReply>& reply) {
  if (!reply.ok()) {
    if (absl::IsNotFound(reply.status())) {
      return Fail(fmt::format("node {}: {}", node, reply.status().message()));
    }
    if (++run_->silent[node] >= kSilentMax) {
      Fail(fmt::format("node {} does not answer: {}", node, reply.status().message()));
    }
    return;
  }
  run_->silent.erase(node);
  const CopyPartReply& before = run_->said[node];
  if (before.written() != reply->written() || before.is_done() != reply->is_done()) {
    run_->moved = state_.seams.executor.Now();
  }
  run_->said[node] = *reply;
  if (!reply->is_running() && !reply->is_done()) {
    return Fail(fmt::format("node {}: {}", node, CleanText(reply->error(), kTextBytesMax)));
  }
  CheckEnd();
}

// Who leads is done when the whole copy is.
void ExportDesk::CheckEnd() {
  const CopyPartReply& lead = run_->said.at(state_.options.node);
  if (!lead.is_done()) return;
  run_->state = Run::State::kDone;
  state_.seams.log.Info("export: version {} is complete in {}: {} tensors, {} bytes", run_->version,
                        CleanText(run_->directory, kTextBytesMax), lead.finished().tensors(),
                        lead.finished().bytes());
  End();
}

void ExportDesk::Fail(const std::string& why) {
  run_->error = why;
  const bool is_writing = run_->state == Run::State::kWriting;
  run_->state = Run::State::kFailed;
  state_.seams.log.Warn("export: no copy of version {} was made in {}: {}", run_->version,
                        CleanText(run_->directory, kTextBytesMax), why);
  if (is_writing) {
    CopyPartRequest request;
    request.set_what(CopyPartRequest::STOP);
    request.set_id(run_->id);
    for (const auto& [node, said] : run_->said) Call(node, request, [](const auto&) {});
  }
  End();
}

void ExportDesk::End() {
  run_->ended = state_.seams.executor.Now();
  state_.seams.executor.Cancel(run_->timer);
  Unpin(nullptr);
  ++(run_->state == Run::State::kDone ? made_ : failed_);
  if (run_->keep != 0) OnPolicyEnded();
}

// --- what is exported without being asked for ---

void ExportDesk::TickLater() {
  tick_ = state_.seams.executor.After(kTickEvery, lifetime_.Bind([this] {
    Tick();
    TickLater();
  }));
}

void ExportDesk::Tick() {
  if (!member_.leads()) newest_.reset();  // whoever leads may write copies that this node knows not
  const Time now = state_.seams.executor.Now();
  StopUnasked(now);
  if (is_surveying_ && now - survey_began_ >= kStallMax) {
    last_error_ = fmt::format("{} does not answer", CleanText(policy_.directory, kTextBytesMax));
    is_survey_error_ = true;
  }
  if (policy_.directory.empty()) return;
  if (!member_.leads() || IsUnderWay() || is_surveying_ || now < not_before_) return;
  if (!newest_) return Survey();
  const CommitRecord& commit = member_.records().commit.value;
  const Version committed = VersionOf(commit);
  if (commit.world() == 0 || committed == newest_->version) return;
  const bool has_one = newest_->version != Version{};
  if (has_one && AgeOf(*newest_) < policy_.every) return;
  Run run;
  run.directory = policy_.directory;  // its own is named by the version that is pinned
  run.bytes_per_s = policy_.bytes_per_s;
  run.keep = policy_.keep;
  BeginRun(std::move(run));
}

Duration ExportDesk::AgeOf(const Newest& newest) const {
  return state_.seams.executor.Now() - newest.ordered;
}

// The daemon itself touches no file there.
void ExportDesk::Survey() {
  CopyPartRequest request;
  request.set_what(CopyPartRequest::SURVEY);
  request.set_directory(policy_.directory);
  is_surveying_ = true;
  survey_began_ = state_.seams.executor.Now();
  auto said = std::make_shared<CopyPartReply>();
  said->set_error("the drain ended without a word: see its log");
  const absl::Status status = drain_->Start(
      request.SerializeAsString(),
      [said](const std::string& line) {
        (void)said->ParseFromString(absl::HexStringToBytes(line));
      },
      lifetime_.Bind([this, said] {
        is_surveying_ = false;
        if (!said->is_done()) {
          last_error_ = CleanText(said->error(), kTextBytesMax);
          is_survey_error_ = true;
          not_before_ = state_.seams.executor.Now() + kPolicyAgainAfter;
          ++failed_;
          state_.seams.log.Warn("export: the copies in {} are not known: {}",
                                CleanText(policy_.directory, kTextBytesMax), last_error_);
          return;
        }
        Newest newest;
        newest.version = {Timeline{said->newest().timeline()}, Step{said->newest().step()}};
        newest.ordered =
            state_.seams.executor.Now() - std::chrono::milliseconds(said->newest_age_ms());
        newest_ = newest;
        if (std::exchange(is_survey_error_, false)) last_error_.clear();
      }));
  if (status.ok()) return;
  is_surveying_ = false;  // the drain may write a part for another node's copy
  last_error_ = CleanText(std::string(status.message()), kTextBytesMax);
  is_survey_error_ = true;
  not_before_ = state_.seams.executor.Now() + kSurveyAgainAfter;
}

void ExportDesk::OnPolicyEnded() {
  last_error_ = run_->error;
  is_survey_error_ = false;
  if (run_->state != Run::State::kDone) {
    newest_.reset();  // it may be there all the same
    not_before_ = state_.seams.executor.Now() + std::min(policy_.every, kPolicyAgainAfter);
    return;
  }
  newest_ = Newest{run_->version, run_->began};
  const CopyFinished& finished = run_->said.at(state_.options.node).finished();
  for (const std::string& name : finished.removed()) {
    state_.seams.log.Info("export: the older copy {} was removed", CleanText(name, kTextBytesMax));
  }
  if (finished.prune_error().empty()) return;
  last_error_ =
      "an older copy was not removed: " + CleanText(finished.prune_error(), kTextBytesMax);
  state_.seams.log.Warn("export: {}", last_error_);
}

std::string ExportDesk::StatusText() const {
  static constexpr std::array<const char*, 5> kStates = {"pinning", "looking", "writing", "done",
                                                         "failed"};
  Json json;
  json["state"] = nullptr;
  if (!run_) return JsonText(json);
  json["id"] = absl::BytesToHexString(run_->id);
  json["state"] = kStates[static_cast<size_t>(run_->state)];
  json["dir"] = run_->directory;
  json["timeline"] = NumberOf(run_->version.timeline);
  json["step"] = run_->version.step.value;
  json["world"] = run_->world;
  json["nodes"] = run_->said.size();
  uint64_t written = 0;
  uint64_t bytes = 0;
  for (const auto& [node, said] : run_->said) {
    written += said.written();
    bytes += said.bytes();
  }
  json["written"] = written;
  json["bytes"] = bytes;
  const Time now = state_.seams.executor.Now();
  const Time until = run_->ended.value_or(now);
  json["seconds"] = std::chrono::duration<double>(until - run_->began).count();
  json["seconds_since"] = std::chrono::duration<double>(now - until).count();
  json["error"] = run_->error;
  if (run_->state == Run::State::kDone) {
    const CopyFinished& finished = run_->said.at(state_.options.node).finished();
    json["tensors"] = finished.tensors();
    json["values"] = finished.values();
    json["copy_bytes"] = finished.bytes();
    json["left_out"] =
        std::vector<std::string>(finished.left_out().begin(), finished.left_out().end());
  }
  return JsonText(json);
}

void ExportDesk::OnPartRequest(const CopyPartRequest& request,
                               absl::AnyInvocable<void(absl::StatusOr<CopyPartReply>)> done) {
  switch (request.what()) {
    case CopyPartRequest::LOOK:
      return done(LookHere({Timeline{request.timeline()}, Step{request.step()}}));
    case CopyPartRequest::START: {
      const absl::Status status = StartHere(request);
      if (!status.ok()) return done(status);
      return done(CopyPartReply());
    }
    case CopyPartRequest::ASK:
      if (part_ && part_->id == request.id()) {
        part_->asked = state_.seams.executor.Now();
        return done(part_->said);
      }
      return done(absl::NotFoundError("its daemon was started anew, and writes no copy"));
    case CopyPartRequest::STOP:
      if (part_ && part_->id == request.id() && drain_ != nullptr) drain_->Stop();
      return done(CopyPartReply());
    default:
      return done(absl::InvalidArgumentError(fmt::format(
          "copy-part: what {} is none that this release knows", static_cast<int>(request.what()))));
  }
}

CopyPartReply ExportDesk::LookHere(Version version) const {
  CopyPartReply reply;
  for (const Slot* slot : state_.slots->All()) {
    if (slot->phase != SlotPhase::kSealed || slot->version != version) continue;
    reply.add_ranks(slot->owner.value);
    reply.set_world(std::max(reply.world(), slot->world));
  }
  return reply;
}

absl::Status ExportDesk::StartHere(const CopyPartRequest& request) {
  if (drain_ == nullptr) {
    return absl::FailedPreconditionError("this daemon has no drain, and writes no copies");
  }
  if (NodeSlot{request.node()} != state_.options.node) {
    return absl::InvalidArgumentError(fmt::format("the order is for node {}, found node {}",
                                                  request.node(), state_.options.node));
  }
  const absl::Status status =
      drain_->Start(request.SerializeAsString(), lifetime_.Bind([this](const std::string& line) {
        CopyPartReply said;
        if (said.ParseFromString(absl::HexStringToBytes(line))) part_->said = std::move(said);
      }),
                    lifetime_.Bind([this] { OnPartEnded(); }));
  if (!status.ok()) return status;
  part_.emplace(Part{request.id(), {}, state_.seams.executor.Now()});
  part_->said.set_is_running(true);
  if (tick_ == TimerId::kNone) TickLater();
  return absl::OkStatus();
}

void ExportDesk::OnPartEnded() {
  CopyPartReply& said = part_->said;
  if (said.is_running()) {
    said.set_error("the drain ended without a word: see what the daemon wrote to standard error");
  }
  said.set_is_running(false);
  // What was given up had been completed by then.
  if (!said.has_finished() || !run_ || run_->id != part_->id ||
      run_->state != Run::State::kFailed) {
    return;
  }
  state_.seams.log.Info("export: version {} is complete in {} all the same", run_->version,
                        CleanText(run_->directory, kTextBytesMax));
  run_->said[state_.options.node] = said;
  run_->state = Run::State::kDone;
  run_->error.clear();
}

// The daemon that runs the copy asks twice a second; when it has died nobody stops the others.
void ExportDesk::StopUnasked(Time now) {
  if (!part_ || !part_->said.is_running() || now - part_->asked < kUnaskedMax) return;
  state_.seams.log.Warn("export: nobody asks for this node's part of a copy any more: it is ended");
  part_->asked = now;
  drain_->Stop();
}

}  // namespace unreft::smp
