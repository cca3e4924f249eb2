#include "smp/node/export_desk.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/text.h"
#include "durable/cold_place.h"
#include "smp/node/export_formats.h"
#include "smp/node/json_text.h"

namespace unreft::smp {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kVerbs = {"export", "export-status", "export-cancel"};
constexpr std::chrono::seconds kTickEvery(1);
constexpr size_t kDirectoryBytesMax = 4000;

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const auto& [name, format] : kExportFormats) names.emplace_back(name);
  return names;
}

// What a request for a copy says.
absl::StatusOr<ExportWish> ParseWish(const std::string& text) {
  const Json arguments = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto find = [&](const char* key) -> const Json* {
    if (!arguments.is_object()) return nullptr;
    const auto found = arguments.find(key);
    return found == arguments.end() ? nullptr : &*found;
  };
  ExportWish wish;
  const Json* const directory = find("dir");
  if (directory != nullptr && directory->is_string()) wish.directory = *directory;
  const bool is_s3 = durable::IsS3Place(wish.directory);
  if ((!is_s3 && !wish.directory.starts_with('/')) || wish.directory.size() > kDirectoryBytesMax ||
      CleanText(wish.directory) != wish.directory) {
    return absl::InvalidArgumentError(
        fmt::format("export: needed the absolute path of a directory, or s3://BUCKET/PREFIX, of {} "
                    "bytes of UTF-8 at most and without control characters, found '{}'",
                    kDirectoryBytesMax, CleanText(wish.directory, kTextBytesMax)));
  }
  if (absl::Status status = durable::CheckColdPlace(wish.directory); !status.ok()) {
    return absl::InvalidArgumentError(fmt::format("export: {}", status.message()));
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
  if (const Json* const format = find("format"); format != nullptr) {
    const std::string name = format->is_string() ? format->get<std::string>() : JsonText(*format);
    const std::optional<CopyOrder::Format> known = ExportFormatOf(name);
    if (!known) {
      return absl::InvalidArgumentError(fmt::format("export: needed a format of [{}], found '{}'",
                                                    fmt::join(FormatNames(), ", "),
                                                    CleanText(name, kTextBytesMax)));
    }
    wish.format = *known;
  }
  return wish;
}

}  // namespace

ExportDesk::ExportDesk(NodeState& state, Member& member, BlockReads::Own own, DrainProcess* drain,
                       ExportPolicy policy)
    : state_(state),
      member_(member),
      drain_(drain),
      own_(state, member, drain, std::move(policy)),
      part_(state, {member.peers(), member.records(), std::move(own)}, drain,
            [this](const std::string& id, const CopyPartReply& said) {
              if (run_ && run_->id() == id) run_->OnPartEnded(said);
            }),
      load_part_(state, member.peers(), drain, [&member] { member.ReportProtection(); }) {
  if (drain_ == nullptr) return;
  const std::string& directory = own_.policy().directory;
  if (!directory.empty()) {
    loads_ = std::make_unique<CopyLoads>(state_, member_.peers(), *drain_, directory);
    member_.set_copies(loads_.get());
  }
  TickLater();
}

ExportDesk::~ExportDesk() {
  member_.set_copies(nullptr);
  if (drain_ != nullptr) drain_->Stop();  // which outlives this
  state_.seams.executor.Cancel(tick_);
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
    run_->Cancel();
  }
  reply(AdminReply{absl::OkStatus(), StatusText()});
}

bool ExportDesk::IsUnderWay() const { return run_ && run_->IsUnderWay(); }

void ExportDesk::Begin(const AdminRequest& request, Reply reply) {
  absl::StatusOr<ExportWish> wish = ParseWish(request.arguments);
  if (!wish.ok()) return reply(AdminReply{wish.status(), ""});
  if (IsUnderWay()) {
    return reply(AdminReply{
        absl::FailedPreconditionError(fmt::format(
            "export: this daemon is writing version {} to {}: wait for it, or `unreft export "
            "--cancel`",
            run_->version(), CleanText(run_->directory(), kTextBytesMax))),
        ""});
  }
  BeginRun(*std::move(wish));
  reply(AdminReply{absl::OkStatus(), StatusText()});  // what comes of it "export-status" says
}

void ExportDesk::BeginRun(ExportWish wish) {
  run_ = std::make_unique<ExportRun>(state_, member_, std::move(wish), [this] { OnRunEnded(); });
  run_->Begin();
}

void ExportDesk::OnRunEnded() {
  ++(run_->HasFailed() ? failed_ : made_);
  if (run_->IsTheJobsOwn()) own_.OnEnded(*run_);
}

void ExportDesk::TickLater() {
  tick_ = state_.seams.executor.After(kTickEvery, lifetime_.Bind([this] {
    part_.Tick();
    load_part_.StopUnasked();
    if (std::optional<ExportWish> due = own_.Due(IsUnderWay())) BeginRun(*std::move(due));
    TickLater();
  }));
}

std::string ExportDesk::StatusText() const {
  Json status = run_ ? run_->Describe() : Json{{"state", nullptr}};
  status["formats"] = FormatNames();  // by which a daemon of a release that has one alone is told
  return JsonText(status);
}

}  // namespace unreft::smp
