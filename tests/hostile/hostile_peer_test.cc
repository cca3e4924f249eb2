// A node of the job that keeps no rule, with the right to be one: the other node's daemon and the
// meta store live, answer, and do not grow, whatever comes in messages, answers and records.

#include <gtest/gtest.h>
#include <unreft/cluster.pb.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/asio_executor.h"
#include "meta/etcd_kv.h"
#include "meta/job_store.h"
#include "meta/leased_key.h"
#include "meta/record_copy.h"
#include "smp/job/cluster_records.h"
#include "smp/job/peers.h"
#include "smp/job/recorded.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/hostile/attacked_daemon.h"
#include "tests/hostile/conversation.h"
#include "tests/hostile/mutation.h"
#include "tests/unit/format_testing.h"
#include "transport/grpc_transport.h"

namespace unreft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr NodeSlot kAttacked{0};
constexpr NodeSlot kHostile{1};
constexpr uint64_t kGrowthMax = uint64_t{512} << 20;

const char* const kMethods[] = {"report",   "pins", "verify", "manifests", "exposure",
                                "announce", "meta", "record", "kept"};

class HostilePeerTest : public ::testing::Test {
 protected:
  // `kept_epoch`: what it says that it has kept, 0 for nothing.
  explicit HostilePeerTest(uint64_t kept_epoch = 0) : kept_epoch_(kept_epoch) {
    resident_ = node_.ResidentBytes();
    InTurn([this] { Join(); });
    if (kept_epoch_ > 0) return;  // without its copy there is no view
    // The first view needs a report of every node.
    UNREFT_CHECK(RunUntil([this] {
                   if (!store_->ready() || !store_->state().leader.exists()) return false;
                   if (!store_->state().view.exists())
                     Call("report", GoodReport().SerializeAsString());
                   return store_->state().view.exists();
                 }),
                 "no view: {}", node_.Output());
  }
  ~HostilePeerTest() override {
    InTurn([this] {
      presence_.reset();
      peers_.reset();
      store_.reset();
      transport_.reset();
      kv_.reset();
    });
  }
  void TearDown() override {
    CheckServed();
    EXPECT_LT(node_.ResidentBytes(), resident_ + kGrowthMax);
    EXPECT_TRUE(meta_.IsAlive()) << meta_.Output();
  }

  void InTurn(absl::FunctionRef<void()> body) {
    bool is_done = false;
    executor_.Post([&] {
      body();
      is_done = true;
    });
    while (!is_done) UNREFT_CHECK(executor_.RunOneFor(seconds(60)), "no turn in 60 s");
  }

  // As a daemon of that slot does.
  void Join() {
    kv_ = *meta::EtcdKv::Create({.endpoints = MetaAddress()}, executor_);
    transport_ = *NewGrpcTransport(
        executor_, {.job = node_.job(), .listen = "unix:" + node_.run_dir() + "/hostile.sock"});
    store_ = std::make_unique<meta::JobStore>(*kv_, executor_, random_, log_, node_.job(), [] {});
    peers_ = std::make_unique<smp::Peers>(executor_, *transport_, store_->state(), node_.job(),
                                          kHostile, incarnation_);
    presence_ = std::make_unique<meta::LeasedKey>(
        *kv_, executor_, log_, store_->PresenceKey(kHostile), seconds(10),
        [](const std::string&) { return true; }, [] {});
    for (const char* method : kMethods) {
      // Not by Peers, which would give any answer in good pages.
      transport_->Serve(method, [this](const std::string& request, Transport::CallDone done) {
        ++asked_;
        Envelope envelope;
        const bool is_paged = envelope.ParseFromString(request) && envelope.has_page();
        if (is_paged && !random_.OneIn(3)) return done(FalsePage(envelope.page()));
        done(Mutated(AnyMessage(), random_));
      });
    }
    peers_->ServeReads([this](NodeSlot, const std::string&, uint64_t bytes, auto done) {
      ++asked_;
      auto junk = std::make_shared<std::string>(random_.Below(2 * bytes + 1), 'j');
      ReadSource source;
      source.header = Mutated(AnyMessage(), random_);
      source.parts.push_back(std::as_bytes(std::span(*junk)));
      source.hold = junk;
      done(std::move(source));
    });
    store_->Start();
    PresenceRecord record;
    record.set_slot(kHostile.value);
    record.set_incarnation(Incarnation());
    record.set_session(1);
    record.set_address(transport_->address());
    presence_->Hold(record.SerializeAsString());
  }

  std::string MetaAddress() const { return "unix:" + meta_.socket(); }
  std::string Incarnation() const { return {incarnation_.begin(), incarnation_.end()}; }

  bool RunUntil(absl::FunctionRef<bool()> done) {
    const Time end = executor_.Now() + seconds(60);
    while (executor_.Now() < end) {
      bool is_done = false;
      executor_.Post([&] { is_done = done(); });
      while (executor_.RunOneFor(milliseconds(10))) {
      }
      if (is_done) return true;
    }
    return false;
  }

  NodeReport GoodReport() {
    NodeReport report;
    report.set_session(1);
    report.set_incarnation(Incarnation());
    report.set_number(++number_);
    report.set_kept_epoch(kept_epoch_);
    return report;
  }
  // One of what nodes tell each other, as it could be.
  std::string AnyMessage() {
    NodeReport report = GoodReport();
    report.set_round_applied(random_.Below(4));
    report.set_newest_timeline(random_.Below(4));
    report.set_newest_step(random_.Next());
    report.set_view(1);
    report.set_attempt(random_.Below(3));
    report.set_world(2);
    for (uint64_t rank = 0; rank < 2; ++rank) {
      AskingRank& asking = *report.add_asking();
      asking.set_rank(rank);
      asking.set_pid(1);
      RegisteredRank& registered = *report.add_registered();
      registered.set_rank(rank);
      registered.set_world(2);
      registered.set_layout_digest(random_.Next());
    }
    VersionHolding& holding = *report.add_versions();
    holding.set_timeline(random_.Below(3));
    holding.set_step(random_.Below(9));
    holding.set_guarded(true);
    holding.set_coding(random_.Next());
    holding.set_data_chunks(1);
    holding.set_failure("\xff\nforged");
    SealedRank& sealed = *holding.add_sealed();
    sealed.set_rank(1);
    sealed.set_world(2);
    EncodedMember& encoded = *holding.add_encoded();
    encoded.set_slot(1);
    encoded.set_incarnation(Incarnation());
    DescriptionHolding& description = *holding.add_descriptions();
    description.add_ranks(1);
    description.set_world(2);
    report.set_kept_epoch(random_.Below(4));
    report.set_kept_sequence(random_.Next());
    meta::JobState records;
    records.store_id.assign(16, 'h');
    records.seed.value.set_epoch(random_.Below(4));
    records.view.bytes.assign(random_.Below(40), '\x0a');
    KeptReply kept;
    kept.set_copy(meta::EncodeCopy(records));
    AnnounceRequest announce;
    announce.set_step(random_.Below(9));
    announce.set_timeline(smp::NewestTimeline(store_->state().timeline.value).value);
    announce.set_block_bytes(4096);
    announce.set_incarnation(Incarnation());
    RankSlab& slab = *announce.add_slabs();
    slab.set_data_bytes(random_.Next());
    MetaReply meta;
    SlabDescription& slab_meta = *meta.add_slabs();
    slab_meta.set_rank(1);
    slab_meta.set_world(2);
    slab_meta.set_manifest(layout::EncodeManifest(ExampleManifest()));
    ManifestReply manifests;
    manifests.add_manifests(layout::EncodeManifest(ExampleManifest()));
    ReadRequest read;
    read.set_kind(static_cast<ReadRequest::Kind>(random_.Below(5)));
    read.set_timeline(1);
    read.set_step(random_.Below(9));
    read.set_blocks(random_.Next());
    read.set_coding(random_.Next());
    VerifyReply verify;
    verify.set_problem("\xff\nforged");
    *verify.add_versions() = holding;
    verify.add_manifests(layout::EncodeManifest(ExampleManifest()));
    Page page;
    page.set_whole_crc(static_cast<uint32_t>(random_.Next()));
    page.set_whole_bytes(random_.OneIn(2) ? random_.Below(uint64_t{1} << 31) : random_.Next());
    page.set_offset(random_.OneIn(2) ? 0 : random_.Next());
    page.set_bytes(std::string(random_.Below(uint64_t{1} << 16), 'p'));
    const std::string messages[] = {report.SerializeAsString(),    announce.SerializeAsString(),
                                    meta.SerializeAsString(),      read.SerializeAsString(),
                                    manifests.SerializeAsString(), verify.SerializeAsString(),
                                    kept.SerializeAsString(),      page.SerializeAsString()};
    return messages[random_.Below(std::size(messages))];
  }
  // A page such as was asked for, of an answer that is none; of another one now and then.
  std::string FalsePage(const PageWish& wish) {
    ++pages_given_;
    const bool goes_on = wish.whole_bytes() > wish.offset() && !random_.OneIn(8);
    Page page;
    page.set_whole_crc(goes_on ? wish.whole_crc() : static_cast<uint32_t>(random_.Next()));
    page.set_whole_bytes(goes_on ? wish.whole_bytes() : 1 + random_.Below(uint64_t{1} << 20));
    page.set_offset(goes_on ? wish.offset() : 0);
    const uint64_t left = page.whole_bytes() - page.offset();
    page.set_bytes(std::string(std::min(left, 1 + random_.Below(uint64_t{1} << 16)), 'p'));
    return page.SerializeAsString();
  }
  PageWish AnyWish() {
    PageWish wish;
    wish.set_offset(random_.OneIn(2) ? 0 : random_.Next());
    wish.set_bytes_max(random_.OneIn(2) ? random_.Below(uint64_t{1} << 16) : random_.Next());
    wish.set_whole_bytes(random_.OneIn(2) ? random_.Below(uint64_t{1} << 16) : random_.Next());
    wish.set_whole_crc(static_cast<uint32_t>(random_.Next()));
    return wish;
  }
  std::string Message() {
    std::string message = AnyMessage();
    return random_.OneIn(3) ? message : Mutated(std::move(message), random_);
  }

  // In a turn. What is answered does not matter.
  void Call(const std::string& method, const std::string& body) {
    ++under_way_;
    peers_->Call(kAttacked, method, body, seconds(5), [this](auto) { --under_way_; });
  }
  // Whatever is called by `one`, so many times, a few at a time.
  void Repeat(int times, absl::FunctionRef<void()> one) {
    for (int i = 0; i < times; ++i) {
      executor_.Post([&] { one(); });
      while (executor_.RunOneFor(Duration{})) {
      }
      if (under_way_ >= 32) {
        ASSERT_TRUE(RunUntil([this] { return under_way_ < 32; }));
      }
      if (i % 200 == 199) CheckServed();
    }
    ASSERT_TRUE(RunUntil([this] { return under_way_ == 0; }));
  }

  // Of the job, without ranks: of versions of a timeline that is not known nobody is asked.
  void OpenTimeline() {
    ASSERT_TRUE(RunUntil([this] {
      if (store_->state().timeline.exists()) return true;
      Conversation operation(node_.socket());
      EXPECT_TRUE(operation.Say(AdminRequest{"fresh-start", R"({"force":true})"}));
      EXPECT_TRUE(operation.Await<AdminReply>());  // refused while nobody leads
      return false;
    }));
  }

  void CheckServed() {
    ASSERT_TRUE(node_.IsAlive()) << node_.Output();
    Conversation operation(node_.socket());
    ASSERT_TRUE(operation.Say(AdminRequest{"status", "{}"}));
    const auto reply = operation.Await<AdminReply>();
    ASSERT_TRUE(reply) << "no status: " << node_.Output();
    EXPECT_TRUE(nlohmann::json::accept(reply->result)) << reply->result;
  }

  const uint64_t kept_epoch_;
  Random random_{20'261'124};
  CaptureLogSink sink_;
  Log log_{sink_};
  AttackedDaemon meta_{{"--role", "meta"}, "meta/meta.sock"};
  AttackedDaemon node_{{"--nodes", "2", "--node", "0", "--data-chunks", "1", "--parity-chunks", "1",
                        "--block-bytes", "4096", "--meta-endpoints", MetaAddress()}};
  uint64_t resident_ = 0;
  RandomId incarnation_ = random_.NextId();
  AsioExecutor executor_;
  std::unique_ptr<meta::Kv> kv_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<meta::JobStore> store_;
  std::unique_ptr<smp::Peers> peers_;
  std::unique_ptr<meta::LeasedKey> presence_;
  uint64_t number_ = 0;
  int under_way_ = 0;
  uint64_t asked_ = 0;
  uint64_t pages_given_ = 0;
};

TEST_F(HostilePeerTest, MessagesOfWrongContent) {
  OpenTimeline();
  Repeat(3000, [this] { Call(kMethods[random_.Below(std::size(kMethods))], Message()); });
  EXPECT_GT(asked_, 0U) << "it was asked nothing, and so has answered nothing";
}

// It says that it has kept newer records than the store has, and gives no page of them that is
// good.
class HostileKeeperTest : public HostilePeerTest {
 protected:
  HostileKeeperTest() : HostilePeerTest(3) {}
};

TEST_F(HostileKeeperTest, FalsePagesOfWhatItHasKept) {
  EXPECT_TRUE(RunUntil([this] {
    if (store_->ready() && store_->state().leader.exists() && under_way_ == 0) {
      Call("report", GoodReport().SerializeAsString());
    }
    return pages_given_ >= 200;
  })) << "it was asked for "
      << pages_given_ << " pages";
  EXPECT_FALSE(store_->state().view.exists());
  ASSERT_TRUE(RunUntil([this] { return under_way_ == 0; }));
}

TEST_F(HostilePeerTest, ReadsOfWhatIsNotThere) {
  std::vector<std::byte> into(1 << 20);
  Repeat(1000, [&] {
    ++under_way_;
    const std::span bytes(into.data(), random_.Below(into.size()));
    peers_->Read(kAttacked, Message(), bytes, seconds(5), [this](auto) { --under_way_; });
  });
}

TEST_F(HostilePeerTest, RequestsThatAreNoEnvelopes) {
  const std::string address = store_->state().present.at(kAttacked).address();
  Envelope envelope;
  envelope.set_job(node_.job());
  envelope.set_store_id(store_->state().store_id);
  envelope.set_view(1);
  envelope.set_slot(kHostile.value);
  envelope.set_incarnation(Incarnation());
  Repeat(1000, [&] {
    ++under_way_;
    envelope.set_body(Message());
    envelope.clear_page();
    if (random_.OneIn(2)) *envelope.mutable_page() = AnyWish();
    transport_->Call(address, kMethods[random_.Below(std::size(kMethods))],
                     Mutated(envelope.SerializeAsString(), random_), seconds(5),
                     [this](auto) { --under_way_; });
  });
}

// Whoever may write the job's records writes what no leader would.
TEST_F(HostilePeerTest, RecordsOfWrongContent) {
  std::vector<meta::KeyValue> records;
  ASSERT_TRUE(RunUntil([&] { return store_->state().view.exists(); }));
  const std::string prefix = "unreft/" + node_.job() + "/";
  const ViewRecord view = store_->state().view.value;
  TimelineRecord timeline;
  timeline.add_chain()->set_timeline(1);
  timeline.set_round(1);
  timeline.set_world(2);
  timeline.mutable_decision()->set_kind(static_cast<uint32_t>(DecisionKind::kFresh));
  timeline.mutable_decision()->set_round(1);
  timeline.mutable_decision()->set_timeline(1);
  CommitRecord commit;
  commit.set_timeline(1);
  commit.set_step(3);
  commit.set_world(2);
  *commit.mutable_groups() = view.groups();
  AbandonRecord abandoned;
  abandoned.set_timeline(1);
  abandoned.set_after_step(UINT64_MAX);
  abandoned.set_through_step(UINT64_MAX - 1);
  PinRecord pins;
  pins.add_pins()->set_step(3);
  PresenceRecord presence = store_->state().present.at(kHostile);
  SpareRecord spare;
  *spare.mutable_presence() = presence;
  const std::pair<std::string, std::string> kinds[] = {
      {"view", view.SerializeAsString()},       {"timeline", timeline.SerializeAsString()},
      {"commit", commit.SerializeAsString()},   {"abandoned", abandoned.SerializeAsString()},
      {"pins", pins.SerializeAsString()},       {"node/1", presence.SerializeAsString()},
      {"spare/5", spare.SerializeAsString()},   {"node/7", presence.SerializeAsString()},
      {"leader", presence.SerializeAsString()}, {"nonsense", "x"},
      {"node/99999999999999999999", "x"},       {"store", "x"}};
  Repeat(600, [&] {
    const auto& [key, value] = kinds[random_.Below(std::size(kinds))];
    meta::Txn txn;
    txn.then.push_back(meta::PutOp{prefix + key, random_.OneIn(4) ? value : Mutated(value, random_),
                                   meta::LeaseId{}});
    ++under_way_;
    kv_->Commit(std::move(txn), [this](auto) { --under_way_; });
  });
}

}  // namespace
}  // namespace unreft
