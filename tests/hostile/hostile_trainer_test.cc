// A trainer that keeps no rule, beside one that does: the daemon lives, the other rank is served,
// what was committed is restored bit for bit or refused, and what is logged is nobody else's words.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unreft/unreft.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/proc_stat.h"
#include "base/shm_segment_store.h"
#include "tests/hostile/attacked_daemon.h"
#include "tests/hostile/conversation.h"
#include "tests/hostile/mutation.h"
#include "tests/unit/format_testing.h"

namespace unreft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kWorld = 2;
constexpr Rank kHonest{0};
constexpr Rank kHostile{1};
constexpr size_t kElements = 10'000;
constexpr uint64_t kGrowthMax = uint64_t{512} << 20;

ProcessLife OwnLife() {
  const absl::StatusOr<ProcStat> stat = ReadProcStat(getpid());
  UNREFT_CHECK(stat.ok(), "{}", stat.status().message());
  return {stat->pid, stat->start_time};
}

class HostileTrainerTest : public ::testing::Test {
 protected:
  HostileTrainerTest() {
    Train(1, /*saves=*/true);
    resident_ = daemon_.ResidentBytes();
    honest_ = std::make_unique<Conversation>(daemon_.socket());
    hostile_ = std::make_unique<Conversation>(daemon_.socket());
    Greet(*honest_, kHonest);
    Greet(*hostile_, kHostile);
    UNREFT_CHECK(honest_->Say(RestoreRequest{1}) && hostile_->Say(RestoreRequest{1}));
    const auto decision = honest_->Await<Decision>();
    UNREFT_CHECK(decision && decision->status.ToStatus().ok(), "{}", daemon_.Output());
    UNREFT_CHECK(hostile_->Await<Decision>().has_value());
    timeline_ = decision->timeline;
  }
  void TearDown() override {
    CheckServed();
    EXPECT_LT(daemon_.ResidentBytes(), resident_ + kGrowthMax);
  }

  // Both ranks as they should be, in an attempt of their own: they save step 1, or they restore it.
  void Train(uint64_t attempt, bool saves) {
    std::vector<std::thread> ranks;
    for (uint64_t rank = 0; rank < kWorld; ++rank) {
      ranks.emplace_back([this, rank, attempt, saves] { TrainRank(rank, attempt, saves); });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  void TrainRank(uint64_t rank, uint64_t attempt, bool saves) {
    std::vector<float> weights(kElements);
    const std::vector<Tensor> state = {{.name = fmt::format("weights{}", rank),
                                        .global_shape = {kElements},
                                        .data = weights.data()}};
    auto client = Client::Open({.socket = daemon_.socket(),
                                .job = daemon_.job(),
                                .rank = static_cast<int64_t>(rank),
                                .world = static_cast<int64_t>(kWorld),
                                .attempt = static_cast<int64_t>(attempt)});
    ASSERT_TRUE(client) << client.error().message;
    auto restored = client->Restore();
    ASSERT_TRUE(restored) << restored.error().message;
    EXPECT_EQ(restored->fresh, saves);
    if (!saves) {
      EXPECT_EQ(restored->step, 1U);
      auto read = client->Read(state);
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_EQ(weights, Weights(rank));
      return;
    }
    std::ranges::copy(Weights(rank), weights.begin());
    ASSERT_TRUE(client->Register(state, 0));
    ASSERT_TRUE(client->WaitReady(60'000));
    ASSERT_TRUE(client->Snapshot(1));
    auto committed = client->WaitCommitted(1, 60'000);
    ASSERT_TRUE(committed) << committed.error().message;
  }
  static std::vector<float> Weights(uint64_t rank) {
    std::vector<float> weights(kElements);
    for (size_t i = 0; i < kElements; ++i) weights[i] = static_cast<float>(i * (rank + 1));
    return weights;
  }

  bool Greet(Conversation& conversation, Rank rank) {
    const Hello hello{.job = daemon_.job(),
                      .rank = rank,
                      .world = kWorld,
                      .attempt = attempt_,
                      .life = OwnLife(),
                      .timeline = timeline_,
                      .client_version = "0"};
    return conversation.Say(hello) && conversation.Await<Welcome>().has_value();
  }
  void CallAgain() {
    hostile_ = std::make_unique<Conversation>(daemon_.socket());
    (void)Greet(*hostile_, kHostile);
  }
  static std::vector<WireTensor> WireTensors() {
    const std::vector<TensorSpec> specs = {Whole("weights1", {kElements})};
    return ToWire(specs);
  }
  // What the hostile rank is told of its memory.
  Registered RegisterHostile() {
    CallAgain();
    Register request{.request = ++request_, .tensors = WireTensors()};
    UNREFT_CHECK(hostile_->Say(std::move(request)));
    const auto registered = hostile_->Await<Registered>();
    UNREFT_CHECK(registered && registered->status.ToStatus().ok(), "{}", daemon_.Output());
    return *registered;
  }

  // The other rank and the operator get their answers.
  void CheckServed() {
    ASSERT_TRUE(daemon_.IsAlive()) << daemon_.Output();
    ASSERT_TRUE(honest_->Say(EverCommittedRequest{++request_}));
    const auto ever = honest_->Await<EverCommitted>();
    ASSERT_TRUE(ever) << "the other rank is not served: " << daemon_.Output();
    EXPECT_EQ(ever->request, request_);
    EXPECT_TRUE(ever->ever);
    const nlohmann::json status = Status();
    EXPECT_EQ(status.at("ranks").size(), kWorld);
  }
  nlohmann::json Status() {
    Conversation operation(daemon_.socket());
    UNREFT_CHECK(operation.Say(AdminRequest{"status", "{}"}));
    const auto reply = operation.Await<AdminReply>();
    UNREFT_CHECK(reply && reply->status.ToStatus().ok(), "no status: {}", daemon_.Output());
    return nlohmann::json::parse(reply->result);
  }
  // What the job had is there for its next attempt.
  void CheckRestored() {
    honest_.reset();
    hostile_.reset();
    Train(3, /*saves=*/false);
    attempt_ = Attempt{4};
    timeline_ = Timeline{};
    honest_ = std::make_unique<Conversation>(daemon_.socket());
    ASSERT_TRUE(Greet(*honest_, kHonest));
    CallAgain();
  }

  AttackedDaemon daemon_{{"--block-bytes", "4096", "--log-level", "info"}};
  uint64_t resident_ = 0;
  Attempt attempt_{2};
  Timeline timeline_;
  uint64_t request_ = 100;
  Random random_{20'261'123};
  std::unique_ptr<Conversation> honest_;
  std::unique_ptr<Conversation> hostile_;
};

TEST_F(HostileTrainerTest, FramesOfWrongContent) {
  std::vector<Frame> frames;
  ForEachExampleMessage([&](const auto& message) { frames.push_back(ToFrame(message)); });
  for (int round = 0; round < 20'000; ++round) {
    Frame frame = frames[random_.Below(frames.size())];
    frame.payload = Mutated(std::move(frame.payload), random_);
    if (random_.OneIn(16)) frame.type = static_cast<uint16_t>(random_.Next());
    if (!hostile_->Send(frame)) CallAgain();
    if (round % 2000 == 1999) CheckServed();
  }
  CheckRestored();
}

// A Hello is made wrong, too, and what follows it comes from nobody.
TEST_F(HostileTrainerTest, FirstFramesOfWrongContent) {
  std::vector<Frame> frames;
  ForEachExampleMessage([&](const auto& message) { frames.push_back(ToFrame(message)); });
  const Frame hello = ToFrame(Hello{.job = daemon_.job(),
                                    .rank = kHostile,
                                    .world = kWorld,
                                    .attempt = attempt_,
                                    .life = OwnLife()});
  for (int round = 0; round < 400; ++round) {
    Conversation stranger(daemon_.socket());
    Frame first = random_.OneIn(2) ? hello : frames[random_.Below(frames.size())];
    first.payload = Mutated(std::move(first.payload), random_);
    // One that names this life is the rank's next connection, whoever sends it.
    const auto hello_still = FromFrame<Hello>(first);
    if (hello_still.ok() && hello_still->life == OwnLife()) continue;
    (void)(stranger.Send(first) && stranger.Send(frames[random_.Below(frames.size())]));
    if (round % 100 == 99) CheckServed();
  }
}

TEST_F(HostileTrainerTest, BytesThatAreNoFrames) {
  const std::string whole = Conversation::BytesOf(ToFrame(RestoreRequest{7}));
  std::vector<std::unique_ptr<Conversation>> silent;
  for (int round = 0; round < 600; ++round) {
    auto stranger = std::make_unique<Conversation>(daemon_.socket());
    if (random_.OneIn(2)) {
      (void)stranger->Send(Mutated(whole, random_));
    } else {
      (void)stranger->Send(std::string_view(whole).substr(0, random_.Below(whole.size())));
    }
    // Of which many say no more.
    if (silent.size() < 300) silent.push_back(std::move(stranger));
    if (round % 100 == 99) CheckServed();
  }
}

// A reason with newlines forged lines of the log, and one that is no UTF-8 ended the daemon when
// somebody asked for its status.
TEST_F(HostileTrainerTest, WordsThatAreNotText) {
  const Registered registered = RegisterHostile();
  const std::string words[] = {"\xff\xfe\x80",          "a\nforged line\r\nforged line",
                               "\x1b[2Jforged",         std::string(1 << 20, 'x'),
                               std::string("\0nul", 4), "\xe2\x82"};
  for (uint64_t step = 2; const std::string& reason : words) {
    const Version version{timeline_, Step{++step}};
    ASSERT_TRUE(hostile_->Say(Skipped{version, reason}));
    ASSERT_TRUE(hostile_->Say(GaveUp{.slot = registered.slots[0].slot,
                                     .generation = Generation{1},
                                     .version = version,
                                     .reason = reason}));
    CheckServed();
  }
  std::istringstream lines(daemon_.Output());
  for (std::string line; std::getline(lines, line);) {
    EXPECT_THAT(line, Not(::testing::StartsWith("forged")));
    EXPECT_THAT(line, Not(HasSubstr("\x1b")));
    EXPECT_LT(line.size(), size_t{16} << 10);
  }
}

// Its own memory is a rank's to write, whenever it likes.
TEST_F(HostileTrainerTest, MemoryThatIsScribbledOver) {
  ShmSegmentStore store;
  const Registered registered = RegisterHostile();
  std::vector<std::unique_ptr<Segment>> own;
  auto control = store.Open(registered.control_segment, Access::kReadWrite, 0);
  ASSERT_TRUE(control.ok()) << control.status();
  own.push_back(*std::move(control));
  for (const WireSlotRegion& slot : registered.slots) {
    auto segment = store.Open(slot.segment, Access::kReadWrite, 0);
    if (segment.ok()) own.push_back(*std::move(segment));
  }
  for (int round = 0; round < 2000; ++round) {
    const std::span<std::byte> bytes = own[random_.Below(own.size())]->bytes();
    // Words of headers more often than data.
    const size_t end = random_.OneIn(3) ? bytes.size() : std::min<size_t>(bytes.size(), 4096);
    const uint64_t word = random_.OneIn(3) ? random_.Below(8) : random_.Next();
    std::memcpy(bytes.data() + random_.Below(end / 8) * 8, &word, sizeof(word));
    const WireSlotRegion& slot = registered.slots[random_.Below(registered.slots.size())];
    const Generation generation{random_.Below(20)};
    const Version version{timeline_, Step{2 + random_.Below(100)}};
    bool said = true;
    switch (random_.Below(5)) {
      case 0:
        said = hostile_->Say(Claimed{slot.slot, generation, version});
        break;
      case 1:
        said = hostile_->Say(Progress{slot.slot, generation});
        break;
      case 2:
        said = hostile_->Say(Captured{slot.slot, generation, version, registered.layout_digest,
                                      random_.Below(1 << 20), random_.Below(1 << 20)});
        break;
      case 3:
        said = hostile_->Say(Register{.request = ++request_, .tensors = WireTensors()});
        break;
      default:
        break;
    }
    if (!said) CallAgain();
    if (round % 200 == 199) CheckServed();
  }
}

}  // namespace
}  // namespace unreft
