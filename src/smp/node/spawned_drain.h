// SpawnedDrain: the drain as a child of this daemon, from the same program.
//
// The child is told to end by SIGTERM, and ends by itself when nobody reads what it prints any
// more: a daemon that dies takes its drain along.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/asio_executor.h"
#include "smp/core/drain_process.h"

namespace unreft::smp {

class SpawnedDrain final : public DrainProcess {
 public:
  // `arguments` are of the command line, before that of the order. The executor outlives this.
  SpawnedDrain(AsioExecutor& executor, std::vector<std::string> arguments);
  // The child is told to end, and is not waited for.
  ~SpawnedDrain() override;

  absl::Status Start(const std::string& order,
                     absl::AnyInvocable<void(const std::string& line)> on_line,
                     absl::AnyInvocable<void()> on_end) override;
  void Stop() override;

 private:
  struct Child;

  void ReadOn();

  AsioExecutor& executor_;
  const std::vector<std::string> arguments_;
  std::shared_ptr<Child> child_;  // null: none runs
};

}  // namespace unreft::smp
