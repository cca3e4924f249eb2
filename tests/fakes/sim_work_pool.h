// SimWorkPool: the work pool of a simulated process.
//
// Each of its threads takes the oldest task, is busy for a random time, and does all of the work at
// the end of it; so with several threads effects come in another order than submission. What is
// accepted is dropped when the process is killed, and done at once when the pool is destroyed.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/work_pool.h"
#include "tests/fakes/sim_executor.h"

namespace unreft {

struct SimWorkPoolOptions {
  size_t threads = 2;
  Duration work_duration_max = std::chrono::milliseconds(1);
};

class SimWorkPool final : public WorkPool {
 public:
  explicit SimWorkPool(SimExecutor& process, SimWorkPoolOptions options = {});
  ~SimWorkPool() override;
  SimWorkPool(const SimWorkPool&) = delete;
  SimWorkPool& operator=(const SimWorkPool&) = delete;

  void Submit(Task work, Executor& executor, Task done) override;
  size_t pending() const override { return accepted_->size(); }

 private:
  struct Item {
    Task work;
    Executor* executor;
    Task done;
  };
  using Items = std::map<uint64_t, Item>;

  static void RunItem(Items& items, uint64_t number);

  SimExecutor& process_;
  const SimWorkPoolOptions options_;
  std::vector<Duration> free_at_;  // of each thread
  uint64_t last_item_ = 0;
  std::shared_ptr<Items> accepted_;  // shared with the events, which may outlive the pool
};

}  // namespace unreft
