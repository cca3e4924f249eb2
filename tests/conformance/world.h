// World: what a conformance suite needs around a seam, in real or virtual time.
//
// A suite is written once over it and instantiated with real worlds and with simulated ones of many
// seeds. All turns run on the test's own thread, between which conditions may be looked at; a suite
// waits for conditions and never for time. Single-threaded.
#pragma once

#include <absl/functional/function_ref.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/asio_executor.h"
#include "base/check.h"
#include "base/executor.h"
#include "tests/fakes/sim_executor.h"

namespace unreft {

class World {
 public:
  virtual ~World() = default;

  // Of process 0 or 1. In a real world both are the same one.
  virtual Executor& executor(int process = 0) = 0;

  // Runs something that is due soon; false when nothing came within the deadline.
  virtual bool RunOne() = 0;

  // Whether `condition` came true before the deadline.
  bool RunUntil(absl::FunctionRef<bool()> condition) {
    for (int events = 0; events < kEventsMax; ++events) {
      if (condition()) return true;
      if (!RunOne()) break;
    }
    return condition();
  }

  // Runs `body` in a turn of that process and returns when it is done.
  void InTurn(Executor& executor, absl::FunctionRef<void()> body) {
    bool done = false;
    executor.Post([&] {
      body();
      done = true;
    });
    UNREFT_CHECK(RunUntil([&] { return done; }), "the executor runs what is posted");
  }
  void InTurn(absl::FunctionRef<void()> body) { InTurn(executor(), body); }

  // Runs what is under way, so that what must not happen has had its chance. `turns` of each
  // process suffice for what takes a few turns; not for what takes time.
  void Settle(int turns = 50) {
    for (int i = 0; i < turns; ++i) {
      InTurn(executor(0), [] {});
      InTurn(executor(1), [] {});
    }
  }

 private:
  static constexpr int kEventsMax = 1'000'000;
};

class AsioWorld : public World {
 public:
  Executor& executor(int) override { return executor_; }
  AsioExecutor& asio() { return executor_; }
  bool RunOne() override { return executor_.RunOneFor(std::chrono::seconds(30)); }

 private:
  AsioExecutor executor_;
};

class SimWorld : public World {
 public:
  explicit SimWorld(uint64_t seed)
      : scheduler_(seed),
        executors_{scheduler_.NewExecutor("process 0"), scheduler_.NewExecutor("process 1")} {}
  Executor& executor(int process) override { return *executors_[process]; }
  SimExecutor& sim(int process = 0) { return *executors_[process]; }
  SimScheduler& scheduler() { return scheduler_; }
  bool RunOne() override { return scheduler_.RunOne(); }

 private:
  SimScheduler scheduler_;
  std::unique_ptr<SimExecutor> executors_[2];
};

// A parameter of a suite: how to make the world of one test.
template <typename W>
struct WorldMaker {
  std::string name;
  std::function<std::unique_ptr<W>()> make;
  friend void PrintTo(const WorldMaker& maker, std::ostream* out) { *out << maker.name; }
};

// Makers of `Sim`, which derives from W and takes a seed, for the seeds 1 to `count`.
template <typename W, typename Sim>
std::vector<WorldMaker<W>> SimWorlds(int count = 20) {
  std::vector<WorldMaker<W>> makers;
  for (int seed = 1; seed <= count; ++seed) {
    makers.push_back({"Seed" + std::to_string(seed),
                      [seed] { return std::make_unique<Sim>(static_cast<uint64_t>(seed)); }});
  }
  return makers;
}

// The name of a test instance.
template <typename W>
std::string WorldName(const testing::TestParamInfo<WorldMaker<W>>& info) {
  return info.param.name;
}

}  // namespace unreft
