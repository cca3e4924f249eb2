#include "tests/fakes/sim_work_pool.h"

#include <algorithm>
#include <utility>

namespace unreft {

SimWorkPool::SimWorkPool(SimExecutor& process, SimWorkPoolOptions options)
    : process_(process),
      options_(options),
      free_at_(options.threads),
      accepted_(std::make_shared<Items>()) {}

SimWorkPool::~SimWorkPool() {
  const auto items = std::exchange(accepted_, std::make_shared<Items>());
  while (!process_.killed() && !items->empty()) RunItem(*items, items->begin()->first);
}

void SimWorkPool::Submit(Task work, Executor& executor, Task done) {
  if (process_.killed()) return;
  SimScheduler& scheduler = process_.scheduler();
  const uint64_t number = ++last_item_;
  accepted_->emplace(number, Item{std::move(work), &executor, std::move(done)});
  // The thread that is free first starts it; hence tasks start in the order of submission.
  Duration& free_at = *std::ranges::min_element(free_at_);
  free_at = std::max(free_at, scheduler.now()) + scheduler.RandomDelay(options_.work_duration_max) +
            Duration(1);
  process_.RunOnThread(free_at - scheduler.now(), [items = std::weak_ptr(accepted_), number] {
    if (const auto alive = items.lock()) RunItem(*alive, number);
  });
}

void SimWorkPool::RunItem(Items& items, uint64_t number) {
  const auto found = items.find(number);
  if (found == items.end()) return;  // done by the destructor
  Item item = std::move(found->second);
  item.work();
  item.work = nullptr;
  items.erase(number);
  item.executor->Post(std::move(item.done));
}

}  // namespace unreft
