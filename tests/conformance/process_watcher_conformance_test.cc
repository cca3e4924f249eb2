#include "tests/conformance/process_watcher_conformance.h"

#include <map>

#include "base/pidfd_watcher.h"
#include "tests/fakes/child_process.h"
#include "tests/fakes/fake_process_watcher.h"

namespace unreft {
namespace {

class PidfdWorld final : public ProcessWorld {
 public:
  World& world() override { return world_; }
  std::unique_ptr<ProcessWatcher> NewWatcher() override {
    return std::make_unique<PidfdWatcher>(world_.asio());
  }
  int64_t StartProcess() override {
    auto child = std::make_unique<ChildProcess>([] {});
    const int64_t pid = child->pid();
    children_[pid] = std::move(child);
    return pid;
  }
  void KillProcess(int64_t pid) override { children_.at(pid)->Kill(); }
  void ReapProcess(int64_t pid) override { children_.at(pid)->Reap(); }

 private:
  AsioWorld world_;
  std::map<int64_t, std::unique_ptr<ChildProcess>> children_;
};

class SimProcessWorld final : public ProcessWorld {
 public:
  explicit SimProcessWorld(uint64_t seed) : world_(seed) {}
  World& world() override { return world_; }
  std::unique_ptr<ProcessWatcher> NewWatcher() override {
    return std::make_unique<FakeProcessWatcher>(table_, world_.sim(), self_);
  }
  int64_t StartProcess() override {
    const ProcessLife life = table_.Start();
    lives_[life.pid] = life;
    return life.pid;
  }
  void KillProcess(int64_t pid) override { table_.End(lives_.at(pid)); }
  void ReapProcess(int64_t) override {}

 private:
  SimWorld world_;
  FakeProcessTable table_;
  const ProcessLife self_ = table_.Start();
  std::map<int64_t, ProcessLife> lives_;
};

INSTANTIATE_TEST_SUITE_P(Pidfd, ProcessWatcherConformance,
                         testing::Values(WorldMaker<ProcessWorld>{
                             "Pidfd", [] { return std::make_unique<PidfdWorld>(); }}),
                         WorldName<ProcessWorld>);
INSTANTIATE_TEST_SUITE_P(Sim, ProcessWatcherConformance,
                         testing::ValuesIn(SimWorlds<ProcessWorld, SimProcessWorld>()),
                         WorldName<ProcessWorld>);

}  // namespace
}  // namespace unreft
