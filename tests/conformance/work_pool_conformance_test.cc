#include "tests/conformance/work_pool_conformance.h"

#include "base/thread_work_pool.h"
#include "tests/fakes/sim_work_pool.h"

namespace unreft {
namespace {

class ThreadWorkPoolWorld final : public WorkPoolWorld {
 public:
  World& world() override { return world_; }
  std::unique_ptr<WorkPool> NewPool(size_t threads) override {
    return std::make_unique<ThreadWorkPool>(threads);
  }

 private:
  AsioWorld world_;
};

class SimWorkPoolWorld final : public WorkPoolWorld {
 public:
  explicit SimWorkPoolWorld(uint64_t seed) : world_(seed) {}
  World& world() override { return world_; }
  std::unique_ptr<WorkPool> NewPool(size_t threads) override {
    return std::make_unique<SimWorkPool>(world_.sim(), SimWorkPoolOptions{.threads = threads});
  }

 private:
  SimWorld world_;
};

INSTANTIATE_TEST_SUITE_P(Threads, WorkPoolConformance,
                         testing::Values(WorldMaker<WorkPoolWorld>{
                             "Threads", [] { return std::make_unique<ThreadWorkPoolWorld>(); }}),
                         WorldName<WorkPoolWorld>);
INSTANTIATE_TEST_SUITE_P(Sim, WorkPoolConformance,
                         testing::ValuesIn(SimWorlds<WorkPoolWorld, SimWorkPoolWorld>()),
                         WorldName<WorkPoolWorld>);

}  // namespace
}  // namespace unreft
