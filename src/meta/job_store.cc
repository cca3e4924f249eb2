#include "meta/job_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/format.h"
#include "meta/record_checks.h"

namespace unreft::meta {
namespace {

constexpr Duration kUnreadableWarnEvery = std::chrono::seconds(30);
constexpr size_t kFormerIdsKept = 64;
constexpr Duration kReadAgain = std::chrono::milliseconds(200);

std::string AsBytes(const RandomId& id) { return {id.begin(), id.end()}; }

// The number at the end of "KIND/NUMBER"; none for anything else.
std::optional<uint64_t> NumberOf(std::string_view kind, std::string_view name) {
  if (!name.starts_with(kind)) return std::nullopt;
  name.remove_prefix(kind.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return number;
}

// Whether a record is not there, or older than it was seen. While a store lives none of the shared
// ones is removed, and none gets an older revision.
bool LacksAny(const std::map<std::string, Revision>& seen, const std::vector<KeyValue>& all) {
  return std::ranges::any_of(seen, [&all](const auto& record) {
    const auto& [key, revision] = record;
    const auto found = std::ranges::find(all, key, &KeyValue::key);
    const Revision now = found == all.end() ? Revision{} : found->mod_revision;
    return now < revision;
  });
}

template <typename Message>
absl::StatusOr<Message> Parsed(const KeyValue& kv) {
  Message value;
  if (!value.ParseFromString(kv.value)) {
    return absl::DataLossError(
        fmt::format("the record {} of {} bytes does not parse", kv.key, kv.value.size()));
  }
  if (absl::Status status = CheckRecord(value); !status.ok()) {
    return absl::DataLossError(
        fmt::format("the record {} is wrong: {}", kv.key, std::string(status.message())));
  }
  return value;
}

}  // namespace

JobStore::JobStore(Kv& kv, Executor& executor, Random& random, Log& log, std::string job,
                   absl::AnyInvocable<void()> on_change)
    : kv_(kv),
      executor_(executor),
      random_(random),
      log_(log),
      prefix_(fmt::format("unreft/{}/", job)),
      on_change_(std::move(on_change)) {}

JobStore::~JobStore() {
  kv_.CancelWatch(watch_);
  executor_.Cancel(again_);
}

void JobStore::Expect(std::string store_id, Stamp newest, TimelineRecord timelines) {
  expected_store_ = std::move(store_id);
  expected_ = newest;
  expected_timelines_ = std::move(timelines);
}

void JobStore::Start() { Read(); }

std::string JobStore::PresenceKey(NodeSlot slot) const {
  return fmt::format("{}node/{}", prefix_, slot);
}

std::string JobStore::SpareKey(uint64_t place) const {
  return fmt::format("{}spare/{}", prefix_, place);
}

std::string JobStore::WaitingKey(uint64_t place) const {
  return fmt::format("{}waiting/{}", prefix_, place);
}

// --- reading ---

void JobStore::ReadAgain() { ReadAfter(kReadAgain); }

void JobStore::ReadAfter(Duration delay) {
  if (watch_ == WatchId::kNone) return;  // it is being read
  kv_.CancelWatch(std::exchange(watch_, WatchId::kNone));
  Again(delay);
}

void JobStore::Read() {
  Txn txn;
  txn.then.push_back(GetOp{{prefix_, true}});
  kv_.Commit(std::move(txn),
             lifetime_.Bind([this, seen = SharedRevisions()](absl::StatusOr<TxnResult> result) {
               OnRead(std::move(result), seen);
             }));
}

std::map<std::string, Revision> JobStore::SharedRevisions() const {
  std::map<std::string, Revision> revisions;
  ForEachShared([&](const char* name, auto record, auto) {
    revisions[prefix_ + name] = (state_.*record).modified;
  });
  return revisions;
}

void JobStore::OnRead(absl::StatusOr<TxnResult> result,
                      const std::map<std::string, Revision>& seen) {
  if (!result.ok()) {
    status_ = result.status();
    log_.WarnEvery("meta store", kUnreadableWarnEvery, executor_.Now(), "{}", status_.message());
    return Again(kReadAgain);
  }
  const std::vector<KeyValue>& all = result->gets.at(0);
  const auto store = std::find_if(all.begin(), all.end(),
                                  [&](const KeyValue& kv) { return kv.key == prefix_ + "store"; });
  if (store == all.end()) return MakeStore(Revision{0});
  if (WentBack(*store, *result, seen)) {
    log_.Error("meta store: it went back and is at revision {}, {} was seen; it gets a new id",
               result->revision, state_.revision);
    return MakeStore(store->mod_revision);
  }
  went_back_ = false;
  const std::string known_store = state_.store_id;
  // In place: others refer to it.
  auto empty = std::make_unique<JobState>();
  std::swap(state_, *empty);
  state_.revision = result->revision;
  unread_.clear();
  if (!IsOfAnother(*store, empty->store_id)) before_ = std::move(empty);
  for (const KeyValue& kv : all) Apply(kv);
  before_.reset();
  if (!known_store.empty() && state_.store_id != known_store) {
    log_.Error("meta store: it is another one now: its id changed");
    former_ids_.push_back(known_store);
    if (former_ids_.size() > kFormerIdsKept) former_ids_.pop_front();
  }
  Watch();
  Changed();
}

bool JobStore::WentBack(const KeyValue& store, const TxnResult& read,
                        const std::map<std::string, Revision>& seen) const {
  StoreRecord record;
  if (!record.ParseFromString(store.value)) return false;
  const bool is_former =
      std::find(former_ids_.begin(), former_ids_.end(), record.store_id()) != former_ids_.end();
  const bool is_older =
      went_back_ || read.revision < state_.revision || LacksAny(seen, read.gets.at(0));
  return is_former || (record.store_id() == state_.store_id && is_older) ||
         IsOlderThanExpected(record.store_id(), read.gets.at(0));
}

bool JobStore::IsOlderThanExpected(const std::string& store_id,
                                   const std::vector<KeyValue>& all) const {
  uint64_t newest = 0;
  SeedRecord seed;
  TimelineRecord timeline;
  for (const auto& [key, revision] : SharedRevisions()) {
    const auto found = std::ranges::find(all, key, &KeyValue::key);
    if (found == all.end()) continue;
    newest = std::max(newest, found->mod_revision.value);
    if (key == prefix_ + "seed" && !seed.ParseFromString(found->value)) return false;
    if (key == prefix_ + "timeline" && !timeline.ParseFromString(found->value)) return false;
  }
  if (store_id == expected_store_ && newest < expected_.sequence) return true;
  return seed.store_id() == store_id && seed.epoch() < expected_.epoch &&
         !IsOfAnotherJob(timeline, expected_timelines_);
}

bool JobStore::IsOfAnother(const KeyValue& kv, const std::string& store_id) const {
  StoreRecord record;
  return kv.key == prefix_ + "store" && record.ParseFromString(kv.value) &&
         record.store_id() != store_id;
}

absl::Status JobStore::status() const {
  return unread_.empty() ? status_ : absl::DataLossError(unread_.begin()->second);
}

void JobStore::MakeStore(Revision seen) {
  StoreRecord record;
  record.set_format(kStoreFormat);
  record.set_min_reader(kStoreMinReader);
  record.set_store_id(AsBytes(random_.NextId()));
  const std::string key = prefix_ + "store";
  Txn txn;
  txn.compares.push_back(Compare::Modified(key, seen));
  txn.then.push_back(PutOp{key, record.SerializeAsString(), LeaseId{}});
  // Whoever made it, it is read next.
  kv_.Commit(std::move(txn), lifetime_.Bind([this](absl::StatusOr<TxnResult> result) {
    Again(result.ok() ? Duration{} : kReadAgain);
  }));
}

void JobStore::Watch() {
  kv_.CancelWatch(watch_);
  watch_ = kv_.Watch(
      {prefix_, true}, Revision{state_.revision.value + 1},
      [this](std::vector<WatchEvent> events) { OnEvents(events); },
      [this](absl::Status status) {
        watch_ = WatchId::kNone;
        log_.Warn("meta store: the watch ended, all is read anew: {}", status.message());
        went_back_ |= absl::IsDataLoss(status);  // it may be as far again when it is read
        Again(kReadAgain);
      });
}

void JobStore::OnEvents(const std::vector<WatchEvent>& events) {
  if (std::ranges::any_of(
          events, [this](const auto& event) { return IsOfAnother(event.kv, state_.store_id); })) {
    return ReadAfter(Duration{});  // what is known is of the one before
  }
  for (const WatchEvent& event : events) {
    // A Txn of our own may have been applied before its event comes.
    if (event.kv.mod_revision < state_.revision) continue;
    state_.revision = event.kv.mod_revision;
    if (event.kind == WatchEvent::Kind::kPut) {
      Apply(event.kv);
    } else {
      Forget(event.kv.key);
    }
  }
  Changed();
}

void JobStore::Again(Duration delay) {
  executor_.Cancel(again_);
  again_ = executor_.After(delay, [this] {
    again_ = TimerId::kNone;
    Read();
  });
}

// Of one node: one that is wrong is as good as none.
template <typename Message>
void JobStore::Parse(const KeyValue& kv, Stored<Message>& into) {
  if (kv.mod_revision < into.modified) return;  // the watch is behind a Txn of our own
  absl::StatusOr<Message> value = Parsed<Message>(kv);
  if (!value.ok()) {
    log_.Error("meta store: {}; it is left out", value.status().message());
    return;
  }
  into.value = *std::move(value);
  into.modified = kv.mod_revision;
}

// Of the whole job: one that is wrong changes nothing. The last good one stands in its place, if
// nothing came between: the watch leaves nothing out, a reading may have.
template <typename Message, typename Records>
void JobStore::ParseShared(const KeyValue& kv, Shared<Message> Records::* record) {
  Shared<Message>& into = state_.*record;
  if (kv.mod_revision < into.modified) return;  // the watch is behind a Txn of our own
  if (kv.mod_revision == into.modified && kv.value == into.bytes) return;  // or brings one
  absl::StatusOr<Message> value = Parsed<Message>(kv);
  if (value.ok()) {
    into.value = *std::move(value);
    into.modified = kv.mod_revision;
    into.bytes = kv.value;
    unread_.erase(kv.key);
    return;
  }
  if (before_ != nullptr && (before_.get()->*record).modified == kv.mod_revision) {
    into = before_.get()->*record;
  }
  const bool is_known = into.exists();
  log_.Error("meta store: {}; {}", value.status().message(),
             is_known ? "the one before it counts, and the next takes its place"
                      : "nothing is decided or committed until it is mended");
  if (is_known) {
    into.modified = kv.mod_revision;
  } else {
    unread_[kv.key] = std::string(value.status().message());
  }
}

void JobStore::Apply(const KeyValue& kv) {
  const std::string_view name = std::string_view(kv.key).substr(prefix_.size());
  if (name == "store") return ApplyStore(kv.value);
  if (name == "leader") {
    Parse(kv, state_.leader);
    state_.leader_created = kv.create_revision;
    state_.leader_value = kv.value;
    return;
  }
  if (name == "settings") return Parse(kv, state_.settings);
  ForEachShared([&](const char* shared, auto record, auto) {
    if (name == shared) ParseShared(kv, record);
  });
  if (const std::optional<uint64_t> slot = NumberOf("node/", name)) {
    Stored<PresenceRecord> presence;
    Parse(kv, presence);
    if (!presence.exists()) return;
    if (presence.value.leaving()) {
      ForgetPresence(NodeSlot{*slot});
      state_.leaving.insert(NodeSlot{*slot});
      return;
    }
    state_.leaving.erase(NodeSlot{*slot});
    state_.present[NodeSlot{*slot}] = std::move(presence.value);
    state_.present_modified[NodeSlot{*slot}] = presence.modified;
  }
  if (const std::optional<uint64_t> place = NumberOf("spare/", name)) {
    Parse(kv, state_.spares[*place]);
    if (!state_.spares[*place].exists()) state_.spares.erase(*place);
  }
  if (const std::optional<uint64_t> place = NumberOf("waiting/", name)) {
    Parse(kv, state_.waiting[*place]);
    if (!state_.waiting[*place].exists()) state_.waiting.erase(*place);
  }
  if (const std::optional<uint64_t> place = NumberOf("refused/", name)) {
    Parse(kv, state_.refused[*place]);
    if (!state_.refused[*place].exists()) state_.refused.erase(*place);
  }
}

void JobStore::Forget(const std::string& key) {
  unread_.erase(key);
  const std::string_view name = std::string_view(key).substr(prefix_.size());
  if (name == "leader") {
    state_.leader = {};
    state_.leader_created = {};
    state_.leader_value.clear();
  }
  if (const auto slot = NumberOf("node/", name)) {
    ForgetPresence(NodeSlot{*slot});
  }
  if (const auto place = NumberOf("spare/", name)) state_.spares.erase(*place);
  if (const auto place = NumberOf("waiting/", name)) state_.waiting.erase(*place);
  if (const auto place = NumberOf("refused/", name)) state_.refused.erase(*place);
  if (name == "settings") state_.settings = {};
}

void JobStore::ForgetPresence(NodeSlot slot) {
  state_.present.erase(slot);
  state_.present_modified.erase(slot);
  state_.leaving.erase(slot);
}

void JobStore::ApplyStore(const std::string& value) {
  StoreRecord record;
  if (!record.ParseFromString(value) || record.store_id().size() != kStoreIdBytes) {
    status_ = absl::DataLossError(fmt::format("meta store: {}store does not parse", prefix_));
    return;
  }
  if (record.min_reader() > kStoreFormat) {
    status_ = absl::FailedPreconditionError(
        fmt::format("meta store: its records need a reader of format {}, this is {}",
                    record.min_reader(), kStoreFormat));
    return;
  }
  status_ = absl::OkStatus();
  state_.store_id = record.store_id();
}

void JobStore::KnowJob() {
  if (is_job_known_ || !state_.IsSeeded()) return;
  is_job_known_ = true;
  if (IsOfAnotherJob(state_.timeline.value, expected_timelines_)) Expect({}, {}, {});
}

void JobStore::Changed() {
  KnowJob();
  if (!change_told_) return;
  change_told_ = false;
  executor_.Post(lifetime_.Bind([this] {
    change_told_ = true;
    on_change_();
  }));
}

// --- writing ---

void JobStore::AddTakeover(const Takeover& takeover, Txn& txn) const {
  const auto move = [&](const auto& waiting, const std::string& from, Revision present) {
    PresenceRecord presence = waiting.value.presence();
    presence.set_slot(takeover.slot.value);
    const std::string to = PresenceKey(takeover.slot);
    txn.compares.push_back(Compare::Modified(from, waiting.modified));
    txn.compares.push_back(Compare::Modified(to, present));
    txn.then.push_back(DeleteOp{{from}});
    txn.then.push_back(PutOp{to, presence.SerializeAsString(),
                             LeaseId{static_cast<uint64_t>(waiting.value.lease())}});
  };
  if (!takeover.returns) {
    return move(state_.spares.at(takeover.place), SpareKey(takeover.place), Revision{0});
  }
  move(state_.waiting.at(takeover.place), WaitingKey(takeover.place),
       state_.present_modified.at(takeover.slot));
}

void JobStore::Write(const HeldKey& leadership, JobChange change,
                     absl::AnyInvocable<void(absl::Status)> done) {
  if (!IsLedBy(leadership)) {
    return executor_.Post([done = std::move(done)]() mutable {
      done(absl::AbortedError("the leader key is another one's, or its event is still to come"));
    });
  }
  if (absl::Status status = CheckChange(change); !status.ok()) {
    return executor_.Post([done = std::move(done), status = std::move(status)]() mutable {
      done(std::move(status));
    });
  }
  Txn txn;
  txn.compares.push_back(Compare::Created(LeaderKey(), leadership.created));
  txn.compares.push_back(Compare::Equals(LeaderKey(), leadership.value));
  const auto guard = [&](const char* name, Revision seen) {
    txn.compares.push_back(Compare::Modified(prefix_ + name, seen));
  };
  guard("settings", state_.settings.modified);
  ForEachShared(
      [&](const char* name, auto record, auto) { guard(name, (state_.*record).modified); });
  for (const NodeSlot slot : change.absent) {
    txn.compares.push_back(Compare::Absent(PresenceKey(slot)));
  }
  Written written;
  ForEachShared([&](const char* name, auto, auto record) {
    if (!(change.*record)) return;
    const std::string& bytes = written[name] = (change.*record)->SerializeAsString();
    txn.then.push_back(PutOp{prefix_ + name, bytes, LeaseId{}});
  });
  if (change.takeover) AddTakeover(*change.takeover, txn);
  kv_.Commit(std::move(txn),
             lifetime_.Bind([this, change = std::move(change), written = std::move(written),
                             done = std::move(done)](absl::StatusOr<TxnResult> result) mutable {
               if (!result.ok()) return done(result.status());
               if (!result->succeeded) {
                 return done(absl::AbortedError("the job's records have changed"));
               }
               Take(std::move(change), std::move(written), result->revision);
               Changed();
               done(absl::OkStatus());
             }));
}

void JobStore::Take(JobChange change, Written written, Revision revision) {
  ForEachShared([&](const char* name, auto kept, auto record) {
    auto& stored = state_.*kept;
    if (!(change.*record) || stored.modified >= revision) return;  // the watch was first
    stored.value = *std::move(change.*record);
    stored.bytes = std::move(written.at(name));
    stored.modified = revision;
  });
  if (!change.takeover) return;
  const auto& [place, slot, returns] = *change.takeover;
  const auto show = [&](auto& waiting) {
    const auto found = waiting.find(place);
    if (found == waiting.end()) return;  // the watch was first
    PresenceRecord& presence = state_.present[slot];
    presence = found->second.value.presence();
    presence.set_slot(slot.value);
    state_.present_modified[slot] = revision;
    waiting.erase(found);
  };
  returns ? show(state_.waiting) : show(state_.spares);
}

}  // namespace unreft::meta
