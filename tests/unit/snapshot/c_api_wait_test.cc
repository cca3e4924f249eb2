// Calls of the C ABI that wait: they end when the caller says so, or after as long as they may.

#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/crc32c.h"
#include "tests/unit/snapshot/c_api_fixture.h"

namespace unreft::snapshot {
namespace {

using testing::HasSubstr;

// Every call that waits ends when the caller says so, and what comes later touches nothing of its.
class CApiWaitTest : public CApiTest {
 protected:
  CApiWaitTest() {
    auto client = unreft::Client::Open({.socket = daemon_.socket(),
                                        .world = 2,
                                        .keep_waiting = [this](const char* what, double seconds) {
                                          ++asked_;
                                          waited_for_ = what;
                                          EXPECT_GT(seconds, 0);
                                          return waits_;
                                        }});
    EXPECT_TRUE(client.ok()) << client.error().message;
    client_.emplace(*std::move(client));
    tensor_.name = "w";
    tensor_.global_shape = {100, 10};
    tensor_.data = weights_.data();
  }
  // A decision that wants 2000 of the tensor's 4000 bytes from this node, the others staged.
  void DecideHalfStaged(const std::string& staging, uint64_t staging_bytes) {
    daemon_.InTurn([&] {
      ScriptedDaemon& daemon = daemon_.daemon();
      daemon.Grant(0, 1);
      daemon.Seal({.slot = SlotId{0}, .generation = Generation{1}, .data_bytes = 2000});
      daemon.decision = Decision{.kind = DecisionKind::kRestored, .timeline = Timeline{8}};
      daemon.plan = RestorePlan{
          .sources = {{.slot = daemon.Where(0)}, {.rank = Rank{1}}},
          .pieces = {{.bytes = 2000}, {.source = 1, .target_offset = 2000, .bytes = 2000}},
          .staging_segment = staging,
          .staging_bytes = staging_bytes,
          .staged_bytes = 2000,
          .block_bytes = 400};
    });
  }
  template <typename Result>
  void ExpectCancelled(const Result& result, const std::string& what) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, UNREFT_CANCELLED) << result.error().message;
    EXPECT_THAT(waited_for_, HasSubstr(what));
    EXPECT_THAT(result.error().message, HasSubstr(what));
  }

  RealScriptedDaemon daemon_;
  bool waits_ = false;
  int asked_ = 0;
  std::string waited_for_;
  std::vector<float> weights_ = std::vector<float>(1000, 1.5F);
  std::optional<unreft::Client> client_;  // which may be copying them until it is closed
  unreft::Tensor tensor_;
};

TEST_F(CApiWaitTest, EndsTheWaitForADecisionAndGetsItWhenAskedAgain) {
  std::optional<Decision> decision;
  daemon_.InTurn([&] { std::swap(decision, daemon_.daemon().decision); });
  ExpectCancelled(client_->Restore(), "the decision what to restore, for which all 2 ranks");
  EXPECT_EQ(asked_, 1);
  daemon_.InTurn([&] { daemon_.daemon().decision = decision; });
  const auto restored = client_->Restore();
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  EXPECT_TRUE(restored->fresh);
}

TEST_F(CApiWaitTest, IsAskedUntilTheAnswerComes) {
  waits_ = true;
  std::optional<Decision> decision;
  daemon_.InTurn([&] { std::swap(decision, daemon_.daemon().decision); });
  std::thread later([&] {
    daemon_.Await([&] { return daemon_.daemon().Count<RestoreRequest>() > 0; });
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    daemon_.InTurn([&] {
      decision->request = daemon_.daemon().Got<RestoreRequest>().back().request;
      daemon_.daemon().Send(*decision);
    });
  });
  EXPECT_TRUE(client_->Restore().ok());
  later.join();
  EXPECT_GT(asked_, 0);
}

TEST_F(CApiWaitTest, EndsTheWaitForARegistrationWhichHoldsOnceItIsAnswered) {
  ASSERT_TRUE(client_->Restore().ok());
  daemon_.InTurn([&] { daemon_.daemon().answers_register = false; });
  ExpectCancelled(client_->Register({tensor_}, 0), "the daemon to take over the tensors");
  auto skipped = client_->Snapshot(1);
  ASSERT_TRUE(skipped.ok());
  EXPECT_THAT(skipped->reason, HasSubstr("the daemon has not taken over the tensors yet"));
  daemon_.InTurn([&] {
    daemon_.daemon().SendRegistered();
    daemon_.daemon().Grant(0, 1);
  });
  uint64_t step = 2;
  EXPECT_TRUE(daemon_.Await([&] { return client_->Snapshot(step++)->started; }));
}

TEST_F(CApiWaitTest, EndsTheWaitForACommit) {
  ASSERT_TRUE(client_->Restore().ok());
  ASSERT_TRUE(client_->Register({tensor_}, 0).ok());
  daemon_.InTurn([&] { daemon_.daemon().Grant(0, 1); });
  ASSERT_TRUE(client_->Snapshot(1)->started);
  ExpectCancelled(client_->WaitCommitted(1, 60000), "all ranks to commit step 1");
}

TEST_F(CApiWaitTest, AReadThatWasEndedWritesNothingAfterIt) {
  ShmSegmentStore segments;
  const std::string name = SegmentPrefix("ended" + std::to_string(getpid()), 0) + "staging";
  auto staging = segments.Create(name, 4096);
  ASSERT_TRUE(staging.ok()) << staging.status();
  ASSERT_TRUE((*staging)->Reserve(0, 4096).ok());
  DecideHalfStaged(name, 400);
  ASSERT_TRUE(client_->Restore().ok());
  ExpectCancelled(client_->Read({tensor_}), "that other nodes hold");
  const std::vector<float> after = weights_;
  daemon_.InTurn([&] {
    std::fill_n((*staging)->bytes().begin(), 400, std::byte{0x77});
    ScriptedDaemon& daemon = daemon_.daemon();
    daemon.Send(Staged{.request = daemon.Got<PlanRequest>().back().request,
                       .bytes = 400,
                       .crc = Crc32c((*staging)->bytes().first(400)),
                       .source = 1});
  });
  // Answered on the same connection behind it.
  ASSERT_TRUE(client_->Restore().ok());
  EXPECT_EQ(weights_, after);
  EXPECT_TRUE(segments.Remove(name).ok());
}

TEST_F(CApiWaitTest, AnExceptionEndsTheWaitToo) {
  auto client = unreft::Client::Open(
      {.socket = "/tmp/unreft_nobody_listens_here",
       .connect_timeout_ms = 60000,
       .keep_waiting = [](const char*, double) -> bool { throw std::runtime_error("no"); }});
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.error().code, UNREFT_CANCELLED);
  EXPECT_THAT(client.error().message,
              HasSubstr("the daemon at /tmp/unreft_nobody_listens_here to answer"));
}

TEST_F(CApiWaitTest, WaitsForMemoryOfASnapshot) {
  EXPECT_EQ(client_->WaitReady(1000).error().code, UNREFT_FAILED_PRECONDITION);
  ASSERT_TRUE(client_->Restore().ok());
  const auto unregistered = client_->WaitReady(1000);
  EXPECT_EQ(unregistered.error().code, UNREFT_FAILED_PRECONDITION);
  EXPECT_THAT(unregistered.error().message, HasSubstr("no tensors are registered"));
  ASSERT_TRUE(client_->Register({tensor_}, 0).ok());
  ExpectCancelled(client_->WaitReady(60000), "memory for the snapshots is still being prepared");
  waits_ = true;
  const auto late = client_->WaitReady(10);
  EXPECT_EQ(late.error().code, UNREFT_DEADLINE_EXCEEDED);
  EXPECT_THAT(late.error().message, HasSubstr("still being prepared"));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    daemon_.InTurn([&] { daemon_.daemon().Grant(0, 1); });
  });
  EXPECT_TRUE(client_->WaitReady(60000).ok());
  EXPECT_TRUE(client_->Snapshot(1)->started);
  later.join();
}

// A step of training waits for so long and no longer, whatever the daemon does.
TEST_F(CApiLifeTest, ARegistrationWaitsAsLongAsItMay) {
  ASSERT_TRUE(client_->Restore().ok());
  daemon_.InTurn([&] { daemon_.daemon().answers_register = false; });
  const auto late = client_->RegisterWithin({tensor_}, 0, 20);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, UNREFT_DEADLINE_EXCEEDED);
  EXPECT_THAT(late.error().message, HasSubstr("s for the daemon to take over the tensors"));
  EXPECT_FALSE(client_->Snapshot(1)->started);
  daemon_.InTurn([&] { daemon_.daemon().SendRegistered(); });
  daemon_.InTurn([&] { daemon_.daemon().Grant(0, 1); });
  uint64_t step = 2;
  EXPECT_TRUE(daemon_.Await([&] { return client_->Snapshot(step++)->started; }));
  daemon_.InTurn([&] { daemon_.daemon().answers_register = true; });
  EXPECT_TRUE(client_->Fence().ok());
  EXPECT_TRUE(client_->RegisterWithin({tensor_}, 0, 60000).ok());
  EXPECT_EQ(client_->RegisterWithin({tensor_}, 0, -1).error().code, UNREFT_INVALID_ARGUMENT);
}

// Holds up the threads of that name, in the handler of a signal, until it is released. One at a
// time.
class HeldThreads {
 public:
  explicit HeldThreads(const std::string& name) {
    holds_ = true;
    held_ = 0;
    struct sigaction action{};
    action.sa_handler = Hold;
    sigaction(SIGUSR2, &action, &before_);
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string found;
      std::getline(std::ifstream(task.path() / "comm"), found);
      if (found != name) continue;
      const pid_t thread = std::stoi(task.path().filename());
      count += syscall(SYS_tgkill, getpid(), thread, SIGUSR2) == 0;
    }
    EXPECT_GT(count, 0) << "no thread is called " << name;
    while (held_ < count) poll(nullptr, 0, 1);
  }
  ~HeldThreads() {
    Release();
    while (held_ > 0) poll(nullptr, 0, 1);
    sigaction(SIGUSR2, &before_, nullptr);
  }
  HeldThreads(const HeldThreads&) = delete;
  HeldThreads& operator=(const HeldThreads&) = delete;

  void Release() { holds_ = false; }

 private:
  // Calls nothing that a handler may not.
  static void Hold(int /*signal*/) {
    const int error = errno;
    ++held_;
    while (holds_) poll(nullptr, 0, 1);
    --held_;
    errno = error;
  }

  static inline std::atomic<bool> holds_ = false;
  static inline std::atomic<int> held_ = 0;
  struct sigaction before_{};
};

class NewTensorsTest : public CApiLifeTest {
 protected:
  NewTensorsTest() {
    for (const char* name : {"u", "v"}) {
      unreft::Tensor& tensor = others_.emplace_back(tensor_);
      tensor.name = name;
      tensor.data = other_.data();
    }
  }
  // With the first tensors registered and granted a slot, and the daemon silent from then on.
  void Ready() {
    ASSERT_TRUE(client_->Restore().ok());
    ASSERT_TRUE(client_->Register({tensor_}, 0).ok());
    daemon_.InTurn([&] {
      daemon_.daemon().answers_register = false;
      daemon_.daemon().Grant(0, 1);
    });
    ASSERT_TRUE(client_->WaitReady(60000).ok());
    ASSERT_TRUE(client_->Fence().ok());
  }
  // How many elements of the slot are `value`.
  size_t InSlot(float value) {
    size_t count = 0;
    daemon_.InTurn([&] {
      const std::span<std::byte> data = daemon_.daemon().slot(0).view->data();
      std::vector<float> elements(data.size() / sizeof(float));
      std::memcpy(elements.data(), data.data(), data.size());
      count = static_cast<size_t>(std::count(elements.begin(), elements.end(), value));
    });
    return count;
  }

  std::vector<float> other_ = std::vector<float>(1000, 2.5F);
  std::vector<float> moved_ = std::vector<float>(1000, 4.5F);
  std::vector<unreft::Tensor> others_;
};

// However late the client's thread is: the program may free the old ones at once.
TEST_F(NewTensorsTest, TheOldOnesAreNotCapturedOnceARegistrationReturns) {
  Ready();
  HeldThreads copier("unreft-copier");
  std::thread later([&] {
    poll(nullptr, 0, 300);
    copier.Release();
  });
  const auto late = client_->RegisterWithin(others_, 0, 0);
  const auto snapped = client_->Snapshot(1);
  const auto rebound = client_->Rebind({1}, {moved_.data()});
  later.join();
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, UNREFT_DEADLINE_EXCEEDED);
  ASSERT_TRUE(snapped.ok()) << snapped.error().message;
  ASSERT_FALSE(snapped->started) << InSlot(1.5F) << " elements of the old tensors are captured";
  EXPECT_THAT(snapped->reason, HasSubstr("the daemon has not taken over the tensors yet"));
  EXPECT_TRUE(rebound.ok()) << rebound.error().message;
  ASSERT_TRUE(client_->Fence().ok());
  EXPECT_TRUE(daemon_.Await([&] { return daemon_.daemon().Count<unreft::Register>() == 2; }));
  EXPECT_EQ(InSlot(1.5F), 0U);
  daemon_.InTurn([&] { daemon_.daemon().SendRegistered(); });
  ASSERT_TRUE(client_->WaitReady(60000).ok());
  EXPECT_TRUE(client_->Snapshot(2)->started);
  ASSERT_TRUE(client_->Fence().ok());
  EXPECT_EQ(InSlot(2.5F), other_.size());
  EXPECT_EQ(InSlot(4.5F), moved_.size());
  EXPECT_TRUE(daemon_.Await([&] { return daemon_.daemon().Count<Claimed>() > 0; }));
  daemon_.InTurn([&] { EXPECT_EQ(daemon_.daemon().Count<Claimed>(), 1U); });
}

// It waits for nobody but itself before its limit, with the daemon gone too.
TEST_F(NewTensorsTest, ARegistrationReturnsWhileTheDaemonIsAway) {
  Ready();
  daemon_.InTurn([&] { daemon_.daemon().Die(); });
  const auto late = client_->RegisterWithin(others_, 0, 0);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, UNREFT_DEADLINE_EXCEEDED);
  ASSERT_FALSE(client_->Snapshot(1)->started);
  daemon_.InTurn([&] {
    daemon_.daemon().answers_register = true;
    daemon_.daemon().Listen();
  });
  EXPECT_TRUE(client_->WaitReady(60000).ok());
  EXPECT_TRUE(client_->Snapshot(2)->started);
  ASSERT_TRUE(client_->Fence().ok());
  EXPECT_EQ(InSlot(1.5F), 0U);
  EXPECT_EQ(InSlot(2.5F), 2 * other_.size());
}

// Nor does the limit hide that the tensors are refused, which leaves the old ones registered.
TEST_F(NewTensorsTest, ARefusalIsToldWhateverTheLimit) {
  Ready();
  others_[1].name = others_[0].name;
  const auto refused = client_->RegisterWithin(others_, 0, 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, UNREFT_INVALID_ARGUMENT) << refused.error().message;
  EXPECT_TRUE(client_->Snapshot(1)->started);
  ASSERT_TRUE(client_->Fence().ok());
  EXPECT_EQ(InSlot(1.5F), weights_.size());
}

}  // namespace
}  // namespace unreft::snapshot
