// The C ABI: bad input, the environment, forks, and one whole life over a real socket and real
// shared memory. What waits is in c_api_wait_test.cc.

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "snapshot/cuda_factory.h"
#include "tests/unit/snapshot/c_api_fixture.h"

extern "C" void(unreft_open_options_init)(unreft_open_options*);

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

TEST_F(CApiTest, NobodyListens) {
  ExpectOpenFails(UNREFT_UNAVAILABLE, "unreft_nobody_listens_here");
}

TEST_F(CApiTest, NullClients) {
  int32_t outcome = 0;
  unreft_status status{};
  status.struct_bytes = sizeof(status);
  unreft_decision decision{};
  decision.struct_bytes = sizeof(decision);
  EXPECT_EQ(unreft_open(&options_, nullptr), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_restore_begin(nullptr, &decision), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_restore_read(nullptr, nullptr, 0), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_restore_end(nullptr), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_register(nullptr, nullptr, 0, 0), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_rebind(nullptr, nullptr, nullptr, 0), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_register_within(nullptr, nullptr, 0, 0, 1), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_snapshot(nullptr, 1, nullptr, 0, nullptr, &outcome), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_fence(nullptr, nullptr), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_get_status(nullptr, &status), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_wait_committed(nullptr, 1, 0), UNREFT_INVALID_ARGUMENT);
  int32_t ever = 0;
  EXPECT_EQ(unreft_ever_committed(nullptr, &ever), UNREFT_INVALID_ARGUMENT);
  EXPECT_STREQ(unreft_error(), "client is NULL");
  const void* extras = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(unreft_restore_extras(nullptr, 0, &extras, &bytes), UNREFT_INVALID_ARGUMENT);
  unreft_close(nullptr);
}

TEST_F(CApiTest, BadOptions) {
  const unreft_open_options good = options_;
  options_.struct_bytes = 3;
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "struct_bytes");
  options_ = good;
  options_.socket = nullptr;
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "UNREFT_SOCKET");
  options_ = good;
  options_.job = "a.b";
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "a.b");
  options_ = good;
  options_.rank = 4;
  options_.world = 4;
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "rank 4");
  options_ = good;
  options_.attempt = -7;
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "attempt");
  options_ = good;
  options_.fence_timeout_ms = -1;
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "fence_timeout_ms");
  options_ = good;
  options_.restore_timeout_ms = INT64_MAX;
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "restore_timeout_ms");
}

// Compiled with a header that ended before device_checksum, whose init is another function.
TEST_F(CApiTest, AnOlderCallersOptionsAreSetAndReadAsFarAsTheyGo) {
  constexpr size_t kOlder = offsetof(unreft_open_options, device_checksum);
  unreft_open_options older;
  std::memset(static_cast<void*>(&older), 0x5a, sizeof(older));
  unreft_open_options_init_sized(&older, kOlder);
  EXPECT_EQ(older.struct_bytes, kOlder);
  EXPECT_EQ(older.fence_timeout_ms, 60000);
  EXPECT_EQ(older.device_checksum, 0x5a5a5a5a);
  std::memset(static_cast<void*>(&older), 0x5a, sizeof(older));
  (unreft_open_options_init)(&older);
  EXPECT_EQ(older.struct_bytes, kOlder);
  EXPECT_EQ(older.rank, -1);
  EXPECT_EQ(older.device_checksum, 0x5a5a5a5a);
  older.socket = options_.socket;
  older.connect_timeout_ms = 50;
  options_ = older;
  ExpectOpenFails(UNREFT_UNAVAILABLE, "unreft_nobody_listens_here");
}

TEST_F(CApiTest, AnyWorldIsOneOrZero) {
  options_.any_world = 2;
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "any_world: needed 0 or 1, found 2");
  options_.any_world = 1;
  ExpectOpenFails(UNREFT_UNAVAILABLE, "unreft_nobody_listens_here");
}

TEST_F(CApiTest, DeviceChecksumIsOneOrZero) {
  options_.device_checksum = 2;
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "device_checksum: needed 0 or 1, found 2");
  options_.device_checksum = -1;
  setenv("UNREFT_DEVICE_CHECKSUM", "yes", 1);
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "UNREFT_DEVICE_CHECKSUM: needed a number, found 'yes'");
  options_.device_checksum = 0;
  ExpectOpenFails(UNREFT_UNAVAILABLE, "unreft_nobody_listens_here");
  unsetenv("UNREFT_DEVICE_CHECKSUM");
}

// Not as Unavailable, which a trainer may take for "no daemon".
TEST_F(CApiTest, DeviceChecksumIsRefusedByNameWhereTheKernelIsMissing) {
  options_.device_checksum = 1;
  const absl::Status built = CheckDeviceChecksum();
  if (built.ok()) return ExpectOpenFails(UNREFT_UNAVAILABLE, "unreft_nobody_listens_here");
  EXPECT_THAT(std::string(built.message()), HasSubstr("was made without"));
  ExpectOpenFails(UNREFT_FAILED_PRECONDITION, std::string(built.message()));
}

TEST_F(CApiTest, BadEnvironment) {
  setenv("RANK", "three", 1);
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "RANK: needed a number, found 'three'");
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "2", 1);
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "rank 3");
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
}

TEST_F(CApiTest, TheEnvironmentFillsIn) {
  RealScriptedDaemon daemon;
  setenv("UNREFT_SOCKET", daemon.socket().c_str(), 1);
  setenv("UNREFT_JOB", "j", 1);
  setenv("RANK", "2", 1);
  setenv("WORLD_SIZE", "4", 1);
  setenv("TORCHELASTIC_RESTART_COUNT", "9", 1);
  auto client = unreft::Client::Open();
  ASSERT_TRUE(client.ok()) << client.error().message;
  Hello hello;
  daemon.InTurn([&] { hello = daemon.daemon().Got<Hello>().at(0); });
  EXPECT_EQ(hello.job, "j");
  EXPECT_EQ(hello.rank, Rank{2});
  EXPECT_EQ(hello.world, 4u);
  EXPECT_EQ(hello.attempt, Attempt{9});
  EXPECT_EQ(hello.life.pid, getpid());
}

// Of two sruns in one job, and of a job that was queued again.
TEST_F(CApiTest, EachStartUnderSlurmIsAnAttemptOfItsOwn) {
  const auto attempt = [](const char* job, const char* step, const char* restart) {
    RealScriptedDaemon daemon;
    setenv("SLURM_JOB_ID", job, 1);
    setenv("SLURM_STEP_ID", step, 1);
    restart == nullptr ? unsetenv("SLURM_RESTART_COUNT")
                       : setenv("SLURM_RESTART_COUNT", restart, 1);
    auto client = unreft::Client::Open({.socket = daemon.socket()});
    EXPECT_TRUE(client.ok()) << client.error().message;
    Attempt found;
    daemon.InTurn([&] { found = daemon.daemon().Got<Hello>().at(0).attempt; });
    return found;
  };
  EXPECT_EQ(attempt("1234", "0", nullptr), Attempt{1234000000});
  EXPECT_EQ(attempt("1234", "1", nullptr), Attempt{1234000100});
  EXPECT_EQ(attempt("1234", "0", "2"), Attempt{1234000002});
  setenv("UNREFT_ATTEMPT", "5", 1);
  EXPECT_EQ(attempt("1234", "0", "2"), Attempt{5});
  unsetenv("UNREFT_ATTEMPT");
  setenv("SLURM_JOB_ID", "a", 1);
  ExpectOpenFails(UNREFT_INVALID_ARGUMENT, "SLURM_JOB_ID: needed a number, found 'a'");
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}) unsetenv(name);
}

TEST_F(CApiLifeTest, CapturesAndRestores) {
  auto restored = client_->Restore();
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  EXPECT_TRUE(restored->fresh);
  ASSERT_TRUE(client_->Register({tensor_}, 10).ok());
  daemon_.InTurn([&] { daemon_.daemon().Grant(0, 1); });
  auto snapped = client_->Snapshot(3, "extras");
  ASSERT_TRUE(snapped.ok()) << snapped.error().message;
  EXPECT_TRUE(snapped->started);
  EXPECT_TRUE(client_->Fence().ok());
  auto skipped = client_->Snapshot(4);
  ASSERT_TRUE(skipped.ok());
  EXPECT_FALSE(skipped->started);
  EXPECT_THAT(skipped->reason, HasSubstr("the snapshot of step 3 is not committed yet"));
  ASSERT_TRUE(daemon_.Await([&] { return daemon_.daemon().Count<Captured>() == 1; }));
  daemon_.InTurn([&] {
    ScriptedDaemon& daemon = daemon_.daemon();
    const Captured captured = daemon.Got<Captured>().at(0);
    daemon.Seal(captured);
    daemon.Send(VersionState{captured.version, VersionPhase::kCommitted});
    daemon.decision = Decision{
        .kind = DecisionKind::kRestored,
        .version = captured.version,
        .timeline = Timeline{8},
        .tensors = {{TensorSpec{
            .name = "w", .global_shape = {100, 10}, .offset = {0, 0}, .extent = {100, 10}}}},
        .extras = {.slot = daemon.Where(0)},
        .source_world = 1,
        .durable_copy = "/mnt/ckpt/step-3"};
    daemon.plan = RestorePlan{.sources = {{.slot = daemon.Where(0)}}, .pieces = {{.bytes = 4000}}};
  });
  EXPECT_TRUE(client_->WaitCommitted(3, 5000).ok());
  auto status = client_->GetStatus();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->connected, 1);
  EXPECT_EQ(status->last_committed_step, 3u);
  EXPECT_EQ(status->last_sealed_step, UINT64_MAX);
  EXPECT_EQ(status->snapshots_started, 1u);
  EXPECT_EQ(status->snapshots_skipped, 1u);
  ASSERT_TRUE(client_->SkipSnapshot(5, "the extras\ndo not fit").ok());
  status = client_->GetStatus();
  EXPECT_EQ(status->snapshots_skipped, 2u);
  EXPECT_EQ(std::string(status->last_problem), "step 5 skipped: the extras\\ndo not fit");
  EXPECT_EQ(client_->SkipSnapshot(3, "it was captured").error().code, UNREFT_FAILED_PRECONDITION);

  auto again = client_->Restore();
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_FALSE(again->fresh);
  EXPECT_EQ(again->step, 3u);
  EXPECT_EQ(again->new_timeline, 8u);
  EXPECT_EQ(again->extras, "extras");
  EXPECT_EQ(again->source_world, 1u);
  EXPECT_EQ(again->durable_copy, "/mnt/ckpt/step-3");
  ASSERT_EQ(again->tensors.size(), 1u);
  EXPECT_EQ(again->tensors[0].name, "w");
  EXPECT_EQ(again->tensors[0].global_shape, (std::vector<uint64_t>{100, 10}));
  const std::vector<float> before = std::exchange(weights_, std::vector<float>(1000));
  tensor_.data = weights_.data();
  EXPECT_TRUE(client_->Read({tensor_}).ok());
  EXPECT_EQ(weights_, before);
  EXPECT_TRUE(client_->EndRestore().ok());
}

TEST_F(CApiLifeTest, TheExtrasOfEachRankThatSavedTheVersionAreRead) {
  daemon_.InTurn([&] {
    ScriptedDaemon& daemon = daemon_.daemon();
    daemon.decision =
        Decision{.kind = DecisionKind::kRestored, .timeline = Timeline{8}, .source_world = 3};
    daemon.extras[Rank{0}] = {.remote = "", .remote_crc = Crc32c({}), .has_remote = true};
    daemon.extras[Rank{1}] = {};
  });
  EXPECT_EQ(client_->RestoreExtras(0).error().code, UNREFT_FAILED_PRECONDITION);
  auto restored = client_->Restore();
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  EXPECT_EQ(restored->source_world, 3u);
  EXPECT_EQ(restored->durable_copy, std::nullopt);
  EXPECT_EQ(restored->extras, std::nullopt);
  auto empty = client_->RestoreExtras(0);
  ASSERT_TRUE(empty.ok()) << empty.error().message;
  EXPECT_EQ(*empty, "") << "empty extras are not no extras";
  auto none = client_->RestoreExtras(1);
  ASSERT_TRUE(none.ok()) << none.error().message;
  EXPECT_EQ(*none, std::nullopt);
  EXPECT_EQ(client_->RestoreExtras(2).error().code, UNREFT_OUT_OF_RANGE);
}

// The local half is read on this thread while blocks of the other half are copied on the client's.
TEST_F(CApiLifeTest, RestoresWhatIsStaged) {
  constexpr uint64_t kBlock = 400;
  std::vector<std::byte> bytes(4000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 11 + 1);
  ShmSegmentStore segments;
  const std::string name = SegmentPrefix("staged" + std::to_string(getpid()), 0) + "staging";
  auto staging = segments.Create(name, 4096);
  ASSERT_TRUE(staging.ok()) << staging.status();
  ASSERT_TRUE((*staging)->Reserve(0, 4096).ok());
  daemon_.InTurn([&] {
    ScriptedDaemon& daemon = daemon_.daemon();
    daemon.Grant(0, 1);
    std::copy_n(bytes.begin(), 2000, daemon.slot(0).view->data().begin());
    daemon.Seal({.slot = SlotId{0}, .generation = Generation{1}, .data_bytes = 2000});
    daemon.decision = Decision{.kind = DecisionKind::kRestored, .timeline = Timeline{8}};
    daemon.plan = RestorePlan{
        .sources = {{.slot = daemon.Where(0)}, {.rank = Rank{1}}},
        .pieces = {{.bytes = 2000}, {.source = 1, .target_offset = 2000, .bytes = 2000}},
        .staging_segment = name,
        .staging_bytes = kBlock,
        .staged_bytes = 2000,
        .block_bytes = kBlock};
    // One block after the other, all in the same place.
    daemon.on_frame = [&, at = uint64_t{2000}](const Frame& frame) mutable {
      const bool asked = frame.type == static_cast<uint16_t>(FrameType::kPlanRequest);
      const bool done = frame.type == static_cast<uint16_t>(FrameType::kStagedDone);
      if ((!asked && !done) || at == bytes.size()) return;
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), kBlock, (*staging)->bytes().begin());
      daemon.Send(Staged{.request = daemon.Got<PlanRequest>().back().request,
                         .bytes = kBlock,
                         .crc = Crc32c((*staging)->bytes().first(kBlock)),
                         .last = at + kBlock == bytes.size(),
                         .source = 1,
                         .block = (at - 2000) / kBlock});
      at += kBlock;
    };
  });
  ASSERT_TRUE(client_->Restore().ok());
  const auto read = client_->Read({tensor_});
  EXPECT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(std::memcmp(weights_.data(), bytes.data(), bytes.size()), 0);
  EXPECT_TRUE(client_->EndRestore().ok());
  EXPECT_TRUE(segments.Remove(name).ok());
  daemon_.InTurn([&] { daemon_.daemon().on_frame = nullptr; });
}

TEST_F(CApiLifeTest, FollowsATensorThatWasReplaced) {
  ASSERT_TRUE(client_->Restore().ok());
  ASSERT_TRUE(client_->Register({tensor_}, 0).ok());
  daemon_.InTurn([&] { daemon_.daemon().Grant(0, 1); });
  ASSERT_TRUE(client_->Fence().ok());
  std::vector<float> other(1000, 2.5F);
  EXPECT_EQ(client_->Rebind({0, 0}, {other.data()}).error().code, UNREFT_INVALID_ARGUMENT);
  const auto rebound = client_->Rebind({0}, {other.data()});
  ASSERT_TRUE(rebound.ok()) << rebound.error().message;
  EXPECT_TRUE(client_->Snapshot(1)->started);
  EXPECT_TRUE(client_->Fence().ok());
  daemon_.InTurn([&] {
    EXPECT_EQ(daemon_.daemon().Count<unreft::Register>(), 1u);
    const auto slab = daemon_.daemon().slot(0).view->data();
    EXPECT_EQ(std::memcmp(slab.data(), other.data(), 4000), 0);
  });
}

TEST_F(CApiLifeTest, BadTensorsAreNamed) {
  const auto expect = [&](auto change, const std::string& message) {
    unreft::Tensor tensor = tensor_;
    change(tensor);
    const auto done = client_->Register({tensor}, 0);
    ASSERT_FALSE(done.ok()) << message;
    EXPECT_EQ(done.error().code, UNREFT_INVALID_ARGUMENT) << done.error().message;
    EXPECT_THAT(done.error().message, HasSubstr(message));
  };
  using T = unreft::Tensor;
  expect([](T& t) { t.data = nullptr; }, "tensor w: data is NULL");
  expect([](T& t) { t.dtype = 99; }, "99");
  expect([](T& t) { t.dtype = 300; }, "300");
  expect([](T& t) { t.device_kind = 3; },
         "tensor w: needed device kind 1 (CPU) or 2 (CUDA), found 3");
  expect(
      [](T& t) {
        t.device_kind = UNREFT_CUDA;
        t.device_index = -1;
      },
      "tensor w: needed a device of 0 or more, found -1");
  expect([](T& t) { t.offset = {1}; }, "tensor w");
  expect([](T& t) { t.extent = {0, 10}; }, "w");
  expect([](T& t) { t.global_shape.assign(17, 1); }, "17");
  expect([](T& t) { t.global_shape = {UINT64_MAX, UINT64_MAX}; }, "w");
  expect([](T& t) { t.name = ""; }, "name");
  expect([](T& t) { t.replica_index = 1; }, "replica");
}

TEST_F(CApiLifeTest, ArraysOfAnotherStructSizeAreRefused) {
  unreft_open_options options;
  unreft_open_options_init(&options);
  options.socket = daemon_.socket().c_str();
  client_.reset();  // of the same rank
  unreft_client* client = nullptr;
  ASSERT_EQ(unreft_open(&options, &client), UNREFT_OK);
  unreft_tensor tensors[2];
  for (unreft_tensor& tensor : tensors) unreft_tensor_init(&tensor);
  tensors[0].name = "a";
  tensors[0].data = weights_.data();
  tensors[0].dtype = UNREFT_FLOAT32;
  tensors[1].struct_bytes = 0;
  EXPECT_EQ(unreft_register(client, tensors, 2, 0), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_register(client, nullptr, 2, 0), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_register(client, tensors, SIZE_MAX, 0), UNREFT_INVALID_ARGUMENT);
  const uint64_t index = 0;
  void* const data = weights_.data();
  EXPECT_EQ(unreft_rebind(client, nullptr, &data, 1), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_rebind(client, &index, nullptr, 1), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_rebind(client, &index, &data, 1), UNREFT_FAILED_PRECONDITION);
  EXPECT_EQ(unreft_rebind(client, nullptr, nullptr, 0), UNREFT_OK);
  EXPECT_EQ(unreft_snapshot(client, 1, nullptr, 5, nullptr, nullptr), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_snapshot(client, 1, nullptr, 0, nullptr, nullptr), UNREFT_FAILED_PRECONDITION);
  EXPECT_EQ(unreft_wait_committed(client, 1, -5), UNREFT_INVALID_ARGUMENT);
  EXPECT_EQ(unreft_wait_committed(client, 1, 0), UNREFT_NOT_FOUND);
  unreft_close(client);
}

TEST_F(CApiLifeTest, ARankHasOneClientInAProcess) {
  const auto second = unreft::Client::Open({.socket = daemon_.socket()});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, UNREFT_FAILED_PRECONDITION);
  EXPECT_THAT(second.error().message, HasSubstr("rank 0 of job default has a client"));
  EXPECT_TRUE(unreft::Client::Open({.socket = daemon_.socket(), .rank = 1, .world = 2}).ok());
  client_.reset();
  EXPECT_TRUE(unreft::Client::Open({.socket = daemon_.socket()}).ok());
}

TEST_F(CApiLifeTest, AForkedChildIsInert) {
  const pid_t child = fork();
  if (child == 0) {
    unreft_client* other = nullptr;
    unreft_open_options options;
    unreft_open_options_init(&options);
    const bool inert = client_->Fence().error().code == UNREFT_FORKED &&
                       client_->Snapshot(1).error().code == UNREFT_FORKED &&
                       client_->GetStatus().error().code == UNREFT_FORKED &&
                       unreft_open(&options, &other) == UNREFT_FORKED;
    client_.reset();  // closes, and must not touch the parent's session
    _exit(inert ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(client_->Restore().ok());
}

}  // namespace
}  // namespace unreft::snapshot
