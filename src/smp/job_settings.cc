#include "smp/job_settings.h"

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
#include "smp/guard_store.h"

namespace unreft::smp {
namespace {

using meta::Compare;
using meta::GetOp;
using meta::KeyValue;
using meta::PutOp;
using meta::Txn;
using meta::TxnResult;

constexpr std::string_view kRecordKey = "settings";  // of the record store
// A daemon that ended a moment ago is present as long as its lease lasts.
constexpr int kWaitsForOthers = 2;
// Those that run shall see it, however short they look away.
constexpr Duration kRefusedTtl = std::chrono::seconds(30);

struct Setting {
  const char* name;
  uint64_t value;
  std::optional<uint64_t> in_job;
};

std::array<Setting, 6> SettingsBeside(const SettingsRecord& job, const NodeOptions& options) {
  const auto in_job = [](bool has, uint64_t value) {
    return has ? std::optional(value) : std::nullopt;
  };
  return {Setting{"nodes", options.nodes, in_job(job.has_nodes(), job.nodes())},
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

absl::Status DifferFrom(const SettingsRecord& job, const NodeOptions& options,
                        std::string_view whose, const std::vector<std::string>& differences) {
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

}  // namespace

SettingsRecord SettingsOf(const NodeOptions& options, const std::string& address) {
  SettingsRecord record;
  record.set_format(meta::kSettingsFormat);
  record.set_min_reader(meta::kSettingsMinReader);
  record.set_nodes(options.nodes);
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

absl::Status CompareSettings(const SettingsRecord& job, const NodeOptions& options) {
  const std::vector<std::string> differences = DifferencesFrom(job, options);
  if (differences.empty()) return absl::OkStatus();
  return DifferFrom(job, options, "the job", differences);
}

// --- the meta store ---

JobSettings::JobSettings(meta::Kv& kv, Executor& executor, Log& log, const NodeOptions& options,
                         std::string address, absl::AnyInvocable<void()> on_change)
    : kv_(kv),
      executor_(executor),
      log_(log),
      options_(options),
      address_(std::move(address)),
      prefix_(fmt::format("unreft/{}/", options.job)),
      on_change_(std::move(on_change)) {}

JobSettings::~JobSettings() { executor_.Cancel(again_); }

void JobSettings::Ask(bool may_write, Done done) {
  may_write_ = may_write;
  Try(false, kWaitsForOthers, std::move(done));
}

void JobSettings::Follow(const meta::JobState& job, bool was_in_view) {
  if (!refusal_.ok() || is_asking_) return;
  if (job.settings.exists() && DifferencesFrom(job.settings.value, options_).empty()) {
    agreed_in_ = job.store_id;
    return;
  }
  if (agreed_in_ == job.store_id && job.revision < known_at_) return;
  is_asking_ = true;
  const bool restores = was_in_view && !agreed_in_.empty() && agreed_in_ != job.store_id;
  Try(restores, kWaitsForOthers, [this, store = job.store_id](const absl::Status& status) {
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
  bool is_empty = true;                    // nobody else is there
};

JobSettings::Seen JobSettings::Look(const std::vector<KeyValue>& all) const {
  Seen seen;
  const std::string own = fmt::format("/{}", options_.place.value_or(options_.node.value));
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
    const bool is_there =
        name.starts_with("node/") || name.starts_with("spare/") || name.starts_with("waiting/");
    if (is_there && name.substr(name.find('/')) != own) seen.is_empty = false;
  }
  return seen;
}

void JobSettings::Try(bool restores, int waits, Done done) {
  Txn txn;
  const std::string key = prefix_ + "settings";
  if (may_write_) {
    txn.compares.push_back(Compare::Absent(key));
    txn.then.push_back(PutOp{key, SettingsOf(options_, address_).SerializeAsString(), {}});
    txn.otherwise.push_back(GetOp{{prefix_, true}});
  } else {
    txn.then.push_back(GetOp{{prefix_, true}});
  }
  kv_.Commit(std::move(txn), [this, alive = std::weak_ptr(alive_), restores, waits,
                              done = std::move(done)](absl::StatusOr<TxnResult> result) mutable {
    if (alive.expired()) return;
    if (!result.ok()) return done(absl::UnavailableError(result.status().message()));
    known_at_ = result->revision;
    if (may_write_ && result->succeeded) return done(absl::OkStatus());
    OnRead(result->gets.at(0), restores, waits, std::move(done));
  });
}

void JobSettings::OnRead(const std::vector<KeyValue>& all, bool restores, int waits, Done done) {
  const Seen seen = Look(all);
  if (!may_write_ && !seen.settings) return done(absl::NotFoundError("the job has no settings"));
  if (!seen.record) return Try(restores, waits, std::move(done));
  if (!seen.settings) {
    log_.Error(
        "meta store: the job's settings, written at revision {}, are none: ours take their "
        "place",
        seen.record->mod_revision);
    return Replace(seen.record->mod_revision, restores, waits, std::move(done));
  }
  const absl::Status compared = CompareSettings(*seen.settings, options_);
  if (compared.ok()) return done(compared);
  if (restores) {
    log_.Error("meta store: it has other settings than the job, and gets those again: {}",
               compared.message());
    return Replace(seen.record->mod_revision, restores, waits, std::move(done));
  }
  if (seen.is_committed || (!seen.is_empty && waits == 0)) {
    return SayRefused(compared, std::move(done));
  }
  if (seen.is_empty && !may_write_) {
    return done(absl::NotFoundError("the job has settings that nothing holds on to"));
  }
  if (seen.is_empty) {
    log_.Warn("the job has new settings, since nothing is committed and nobody else is there: {}",
              absl::StrJoin(DifferencesFrom(*seen.settings, options_), "; "));
    return Replace(seen.record->mod_revision, restores, waits, std::move(done));
  }
  again_ = executor_.After(options_.presence_ttl,
                           [this, restores, waits, done = std::move(done)]() mutable {
                             again_ = TimerId::kNone;
                             Try(restores, waits - 1, std::move(done));
                           });
}

void JobSettings::Replace(meta::Revision seen, bool restores, int waits, Done done) {
  Txn txn;
  const std::string key = prefix_ + "settings";
  txn.compares.push_back(Compare::Modified(key, seen));
  txn.then.push_back(PutOp{key, SettingsOf(options_, address_).SerializeAsString(), {}});
  kv_.Commit(std::move(txn), [this, alive = std::weak_ptr(alive_), restores, waits,
                              done = std::move(done)](absl::StatusOr<TxnResult> result) mutable {
    if (alive.expired()) return;
    if (!result.ok()) return done(absl::UnavailableError(result.status().message()));
    known_at_ = result->revision;
    if (result->succeeded) return done(absl::OkStatus());
    Try(restores, waits, std::move(done));  // another was first
  });
}

// Whether it arrives or not, this daemon is refused.
void JobSettings::SayRefused(const absl::Status& why, Done done) {
  const uint64_t place = options_.place.value_or(options_.node.value);
  RefusedRecord record;
  record.set_place(place);
  record.set_address(address_);
  record.set_why(std::string(why.message()));
  kv_.GrantLease(kRefusedTtl, [this, alive = std::weak_ptr(alive_), why, place,
                               value = record.SerializeAsString(), done = std::move(done)](
                                  absl::StatusOr<meta::LeaseId> lease) mutable {
    if (alive.expired()) return;
    if (!lease.ok()) return done(why);
    Txn txn;
    txn.then.push_back(
        PutOp{fmt::format("{}refused/{}", prefix_, place), std::move(value), *lease});
    kv_.Commit(std::move(txn), [alive, why, done = std::move(done)](const auto&) mutable {
      if (!alive.expired()) done(why);
    });
  });
}

// --- at the start ---

SettingsCheck::SettingsCheck(NodeSeams& seams, const NodeOptions& options)
    : seams_(seams), options_(options) {
  if (seams.kv == nullptr) return;
  job_ = std::make_unique<JobSettings>(*seams.kv, seams.executor, seams.log, options,
                                       seams.transport->address(), [] {});
}

void SettingsCheck::Start(absl::AnyInvocable<void(absl::Status)> done) {
  done_ = std::move(done);
  if (job_ != nullptr) return AskJob(false);
  CompareWithRecords([this] {
    Keep();
    End(absl::OkStatus());
  });
}

void SettingsCheck::AskJob(bool may_write) {
  job_->Ask(may_write, [this](absl::Status status) {
    if (absl::IsUnavailable(status)) {
      seams_.log.Warn("the job's settings cannot be read yet: {}", status.message());
      return CompareWithRecords([this] {
        // What is made here now is made by ours.
        const auto memory = seams_.segments.List(MemoryPrefix(options_));
        if (memory.ok() && memory->empty()) Keep();
        End(absl::OkStatus());
      });
    }
    if (absl::IsNotFound(status)) return CompareWithRecords([this] { AskJob(true); });
    if (status.ok()) Keep();
    End(std::move(status));
  });
}

// Where no store says what the job's settings are, those count that the memory here was made by.
void SettingsCheck::CompareWithRecords(absl::AnyInvocable<void()> agree) {
  seams_.records.Scan(std::string(kRecordKey), [this, alive = std::weak_ptr(alive_),
                                                agree = std::move(agree)](auto records) mutable {
    if (alive.expired()) return;
    const absl::StatusOr<std::vector<SegmentInfo>> memory =
        seams_.segments.List(MemoryPrefix(options_));
    SettingsRecord kept;
    const bool is_kept = records.ok() && records->size() == 1 &&
                         kept.ParseFromString(records->front().value) &&
                         meta::CheckRecord(kept).ok();
    if (is_kept && memory.ok() && !memory->empty()) {
      // The others are this daemon's alone in a job of one node, and fit to what is there.
      const bool is_alone = job_ == nullptr && kept.nodes() == 1 && options_.nodes == 1;
      if (is_alone) {
        kept.clear_slots_per_rank();
        kept.clear_pins();
        kept.clear_block_bytes();
      }
      const std::vector<std::string> differences = DifferencesFrom(kept, options_);
      if (!differences.empty()) {
        return End(DifferFrom(kept, options_, "the memory that lies here", differences));
      }
    }
    agree();
  });
}

// Nothing waits for it.
void SettingsCheck::Keep() {
  const std::string address = job_ == nullptr ? "this host" : seams_.transport->address();
  seams_.records.Write(
      {{std::string(kRecordKey), SettingsOf(options_, address).SerializeAsString()}},
      Durability::kSynced, [](const absl::Status&) {});
}

void SettingsCheck::End(absl::Status status) {
  seams_.executor.Post([alive = std::weak_ptr(alive_), done = std::move(done_), status]() mutable {
    if (!alive.expired()) done(std::move(status));
  });
}

}  // namespace unreft::smp
