#include "smp/job/job_settings.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/time/time.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/guard_header.h"
#include "base/slot_header.h"
#include "layout/manifest.h"
#include "meta/record_checks.h"

namespace unreft::smp {
namespace {

using meta::Compare;
using meta::DeleteOp;
using meta::GetOp;
using meta::KeyValue;
using meta::PutOp;
using meta::Txn;
using meta::TxnResult;

// A daemon that ended a moment ago is present as long as its lease lasts.
constexpr int kWaitsForOthers = 2;
// So that an operator who looks a little later sees it.
constexpr Duration kRefusedTtl = std::chrono::minutes(10);

struct Setting {
  const char* name;
  uint64_t value;
  std::optional<uint64_t> in_job;
};

std::array<Setting, 7> SettingsBeside(const SettingsRecord& job, const NodeOptions& options) {
  const auto in_job = [](bool has, uint64_t value) {
    return has ? std::optional(value) : std::nullopt;
  };
  return {Setting{"nodes", options.nodes, in_job(job.has_nodes(), job.nodes())},
          {"nodes_min", options.nodes_min, in_job(job.has_nodes_min(), job.nodes_min())},
          {"data_chunks", options.data_chunks, in_job(job.has_data_chunks(), job.data_chunks())},
          {"parity_chunks", options.parity_chunks,
           in_job(job.has_parity_chunks(), job.parity_chunks())},
          {"slots_per_rank", options.slots_per_rank,
           in_job(job.has_slots_per_rank(), job.slots_per_rank())},
          {"pins", options.pins, in_job(job.has_pins(), job.pins())},
          {"block_bytes", options.block_bytes, in_job(job.has_block_bytes(), job.block_bytes())}};
}

struct Format {
  const char* name;
  uint32_t format;
  uint32_t min_reader;
};

// What one node writes and another reads.
constexpr std::array kFormats = {
    Format{"slot", kSlotFormat, kSlotMinReader}, Format{"guard", kGuardFormat, kGuardMinReader},
    Format{"guard_record", kGuardRecordFormat, kGuardRecordMinReader},
    Format{"manifest", layout::kManifestFormat, layout::kManifestMinReader},
    Format{"store", meta::kStoreFormat, meta::kStoreMinReader}};

std::string SourceOf(const NodeOptions& options, std::string_view name) {
  const auto found = options.sources.find(name);
  return found == options.sources.end() ? "the default" : found->second;
}

std::string FlagOf(const Setting& setting) {
  return fmt::format("--{} {}", absl::StrReplaceAll(setting.name, {{"_", "-"}}), *setting.in_job);
}

std::string WriterOf(const SettingsRecord& job) {
  std::string writer =
      fmt::format("node {} at {}, unreftd {}", job.place(), job.address(), job.version());
  if (job.started_s() == 0) return writer;
  const absl::Time started = absl::FromUnixSeconds(static_cast<int64_t>(job.started_s()));
  return writer + ", started " +
         absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", started, absl::UTCTimeZone());
}

}  // namespace

SettingsRecord SettingsOf(const NodeOptions& options, const std::string& address) {
  SettingsRecord record;
  record.set_format(meta::kSettingsFormat);
  record.set_min_reader(meta::kSettingsMinReader);
  record.set_nodes(options.nodes);
  record.set_nodes_min(options.nodes_min);
  record.set_data_chunks(options.data_chunks);
  record.set_parity_chunks(options.parity_chunks);
  record.set_slots_per_rank(options.slots_per_rank);
  record.set_pins(options.pins);
  record.set_block_bytes(options.block_bytes);
  for (const Format& format : kFormats) {
    FormatRange& range = *record.add_formats();
    range.set_name(format.name);
    range.set_format(format.format);
    range.set_min_reader(format.min_reader);
  }
  record.set_place(options.place.value_or(options.node.value));
  record.set_address(address);
  record.set_version(options.software_version);
  record.set_started_s(options.started_s);
  return record;
}

std::vector<std::string> DifferencesFrom(const SettingsRecord& job, const NodeOptions& options) {
  std::vector<std::string> differences;
  for (const Setting& setting : SettingsBeside(job, options)) {
    if (!setting.in_job || *setting.in_job == setting.value) continue;
    differences.push_back(fmt::format("{} is {} here ({}), {} in the job", setting.name,
                                      setting.value, SourceOf(options, setting.name),
                                      *setting.in_job));
  }
  for (const FormatRange& range : job.formats()) {
    const auto own = std::ranges::find_if(
        kFormats, [&](const Format& format) { return range.name() == format.name; });
    if (own == kFormats.end()) continue;
    if (range.min_reader() <= own->format && own->min_reader <= range.format()) continue;
    differences.push_back(fmt::format(
        "the format of '{}' is {} here, for readers of {} on, and {} in the job, for readers of "
        "{} on: take a release between both",
        own->name, own->format, own->min_reader, range.format(), range.min_reader()));
  }
  return differences;
}

absl::Status CompareSettings(const SettingsRecord& job, const NodeOptions& options,
                             std::string_view whose) {
  const std::vector<std::string> differences = DifferencesFrom(job, options);
  if (differences.empty()) return absl::OkStatus();
  std::vector<std::string> flags;
  for (const Setting& setting : SettingsBeside(job, options)) {
    if (setting.in_job && *setting.in_job != setting.value) flags.push_back(FlagOf(setting));
  }
  return absl::FailedPreconditionError(fmt::format(
      "node {} of job {} is not started like {}, which is as that of {} was: {}. {}To start the "
      "job with others give its state up by 'unreft fresh-start', end all its daemons by 'unreft "
      "down' on each node, then start them",
      options.place.value_or(options.node.value), options.job, whose, WriterOf(job),
      absl::StrJoin(differences, "; "),
      flags.empty() ? "" : fmt::format("Start it with {}. ", absl::StrJoin(flags, " "))));
}

// --- the meta store ---

JobSettings::JobSettings(meta::Kv& kv, Executor& executor, Log& log, const NodeOptions& options,
                         std::string address, absl::AnyInvocable<void()> on_change)
    : kv_(kv),
      executor_(executor),
      log_(log),
      options_(options),
      address_(std::move(address)),
      place_(options.place.value_or(options.node.value)),
      prefix_(fmt::format("unreft/{}/", options.job)),
      refused_key_(fmt::format("{}refused/{}", prefix_, place_)),
      on_change_(std::move(on_change)) {}

JobSettings::~JobSettings() { executor_.Cancel(again_); }

void JobSettings::Ask(KeptMemory memory, Done done) {
  Write(kNone, {.memory = memory, .waits = kWaitsForOthers}, std::move(done));
}

void JobSettings::Follow(const meta::JobState& job, bool is_of_job) {
  if (!refusal_.ok() || is_asking_) return;
  if (job.settings.exists() && DifferencesFrom(job.settings.value, options_).empty()) {
    const bool is_new = std::exchange(agreed_in_, job.store_id) != job.store_id;
    if (is_new && job.refused.contains(place_)) ForgetRefusal();
    return;
  }
  if (agreed_in_ == job.store_id && job.revision < known_at_) return;
  is_asking_ = true;
  const bool restores = is_of_job && !agreed_in_.empty() && agreed_in_ != job.store_id;
  const Asked asked{
      .restores = restores, .may_take = agreed_in_ != job.store_id, .waits = kWaitsForOthers};
  Write(kNone, asked, [this, store = job.store_id](const absl::Status& status) {
    is_asking_ = false;
    if (absl::IsUnavailable(status)) return;  // asked again with what is read next
    if (status.ok()) {
      agreed_in_ = store;
    } else {
      refusal_ = status;
    }
    on_change_();
  });
}

struct JobSettings::Seen {
  std::optional<KeyValue> record;
  std::optional<SettingsRecord> settings;  // none: wrong, or there is no record
  bool is_committed = false;               // something may be
  bool is_blank = true;                    // it knows of no attempt: it is new, or was wiped
  bool is_empty = true;                    // nobody else is there
  bool was_refused = false;                // a daemon of this place
};

JobSettings::Seen JobSettings::Look(const std::vector<KeyValue>& all) const {
  Seen seen;
  const std::string own = fmt::format("/{}", place_);
  for (const KeyValue& kv : all) {
    const std::string_view name = std::string_view(kv.key).substr(prefix_.size());
    if (name == "settings") {
      seen.record = kv;
      SettingsRecord record;
      if (record.ParseFromString(kv.value) && meta::CheckRecord(record).ok()) {
        seen.settings = std::move(record);
      }
    } else if (name == "commit") {
      CommitRecord commit;
      seen.is_committed = !commit.ParseFromString(kv.value) || commit.world() != 0;
    }
    seen.was_refused |= kv.key == refused_key_;
    seen.is_blank &= name != "view" && name != "timeline" && name != "commit";
    const bool is_there =
        name.starts_with("node/") || name.starts_with("spare/") || name.starts_with("waiting/");
    if (is_there && name.substr(name.find('/')) != own) seen.is_empty = false;
  }
  return seen;
}

void JobSettings::Write(meta::Revision seen, Asked asked, Done done) {
  const std::string key = prefix_ + "settings";
  const bool is_there = seen.value != 0;
  Txn txn;
  txn.compares.push_back(Compare::Modified(key, seen));
  if (asked.memory == KeptMemory::kDiffers && !is_there) {
    txn.then.push_back(GetOp{{prefix_, true}});
  } else {
    txn.then.push_back(PutOp{key, SettingsOf(options_, address_).SerializeAsString(), {}});
    txn.then.push_back(DeleteOp{{refused_key_}});
  }
  txn.otherwise.push_back(GetOp{{prefix_, true}});
  kv_.Commit(std::move(txn), lifetime_.Bind([this, asked, done = std::move(done)](
                                                absl::StatusOr<TxnResult> result) mutable {
    if (!result.ok()) return done(absl::UnavailableError(result.status().message()));
    known_at_ = result->revision;
    if (result->gets.empty()) return done(absl::OkStatus());  // written
    OnRead(result->gets.at(0), asked, std::move(done));
  }));
}

void JobSettings::OnRead(const std::vector<KeyValue>& all, Asked asked, Done done) {
  const Seen seen = Look(all);
  const bool differs = asked.memory == KeptMemory::kDiffers;
  if (!seen.record) {
    if (differs && seen.is_blank) return done(DoesNotKnow());
    asked.memory = KeptMemory::kNone;  // it was given up, or the store would say so
    return Write(kNone, asked, std::move(done));
  }
  if (!seen.settings) {
    log_.Error(
        "meta store: the job's settings, written at revision {}, are none: ours take their "
        "place",
        seen.record->mod_revision);
    return Write(seen.record->mod_revision, asked, std::move(done));
  }
  const absl::Status compared = CompareSettings(*seen.settings, options_);
  if (compared.ok()) {
    if (seen.was_refused) ForgetRefusal();
    return done(compared);
  }
  if (differs && seen.is_blank) return done(DoesNotKnow());
  if (asked.restores || (asked.memory == KeptMemory::kAgrees && seen.is_blank)) {
    log_.Error("meta store: it has other settings than the job, and gets those again: {}",
               compared.message());
    return Write(seen.record->mod_revision, asked, std::move(done));
  }
  if (seen.is_committed || !asked.may_take || (!seen.is_empty && asked.waits == 0)) {
    return SayRefused(compared, std::move(done));
  }
  // Whoever has just written them is present a moment later.
  if (seen.is_empty && asked.waits < kWaitsForOthers) {
    log_.Warn("the job has new settings, since nothing is committed and nobody else is there: {}",
              absl::StrJoin(DifferencesFrom(*seen.settings, options_), "; "));
    return Write(seen.record->mod_revision, asked, std::move(done));
  }
  again_ = executor_.After(options_.presence_ttl, [this, asked, done = std::move(done)]() mutable {
    again_ = TimerId::kNone;
    --asked.waits;
    Write(kNone, asked, std::move(done));
  });
}

absl::Status JobSettings::DoesNotKnow() const {
  return absl::NotFoundError(fmt::format(
      "the meta store is new, or was wiped: it knows no attempt of job {}", options_.job));
}

// Whether it arrives or not, this daemon is refused.
void JobSettings::SayRefused(const absl::Status& why, Done done) {
  RefusedRecord record;
  record.set_place(place_);
  record.set_address(address_);
  record.set_why(std::string(why.message()));
  auto write = [this, why, value = record.SerializeAsString(),
                done = std::move(done)](absl::StatusOr<meta::LeaseId> lease) mutable {
    if (!lease.ok()) return done(why);
    Txn txn;
    txn.then.push_back(PutOp{refused_key_, std::move(value), *lease});
    kv_.Commit(std::move(txn),
               lifetime_.Bind([why, done = std::move(done)](const auto&) mutable { done(why); }));
  };
  kv_.GrantLease(kRefusedTtl, lifetime_.Bind(std::move(write)));
}

// Of the daemon that was here before. If that does not arrive, its lease ends it.
void JobSettings::ForgetRefusal() {
  Txn txn;
  txn.then.push_back(DeleteOp{{refused_key_}});
  kv_.Commit(std::move(txn), [](const auto&) {});
}

}  // namespace unreft::smp
