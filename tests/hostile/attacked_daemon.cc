#include "tests/hostile/attacked_daemon.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/segment_store.h"
#include "base/unix_socket.h"

namespace unreft {
namespace {

using std::chrono::milliseconds;

constexpr int kPatience = 3000;  // times 20 ms: a loaded machine with sanitizers is slow

std::string Slurp(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

AttackedDaemon::AttackedDaemon(const std::vector<std::string>& options, const std::string& socket,
                               std::string job)
    : job_(std::move(job)) {
  static int number = 0;
  if (job_.empty()) job_ = fmt::format("hostile-{}-{}", getpid(), number++);
  std::string made = "/tmp/unreft-hostile-XXXXXX";
  UNREFT_CHECK(mkdtemp(made.data()) != nullptr, "{}", made);
  directory_ = made;
  socket_ = run_dir() + "/" + socket;
  const char* bin = getenv("UNREFT_BIN_DIR");
  UNREFT_CHECK(bin != nullptr, "UNREFT_BIN_DIR names the directory of unreftd");
  std::vector<std::string> words = {std::string(bin) + "/unreftd", "--job", job_, "--run-dir",
                                    run_dir()};
  words.insert(words.end(), options.begin(), options.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string output = directory_ + "/output";
  pid_ = fork();
  UNREFT_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0) {
    const int log = open(output.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  for (int i = 0; i < kPatience && IsAlive(); ++i) {
    if (ConnectUnixSocket(socket_).ok()) return;
    std::this_thread::sleep_for(milliseconds(20));
  }
  UNREFT_CHECK(false, "unreftd does not serve: {}", Output());
}

AttackedDaemon::~AttackedDaemon() {
  EXPECT_TRUE(IsAlive()) << "it ended with wait status " << ended_as_ << ": " << Output();
  if (IsAlive()) {
    kill(pid_, SIGTERM);
    for (int i = 0; i < kPatience && IsAlive(); ++i) {
      std::this_thread::sleep_for(milliseconds(20));
    }
  }
  if (IsAlive()) {
    ADD_FAILURE() << "it does not end";
    kill(pid_, SIGKILL);
    waitpid(pid_, &ended_as_, 0);
  } else {
    EXPECT_TRUE(WIFEXITED(ended_as_) && WEXITSTATUS(ended_as_) == 0)
        << "wait status " << ended_as_ << ": " << Output();
  }
  const std::string output = Output();
  EXPECT_EQ(output.find("Sanitizer"), std::string::npos) << output;
  EXPECT_EQ(output.find("runtime error"), std::string::npos) << output;
  for (const std::string& name : Segments()) shm_unlink(name.c_str());
  std::filesystem::remove_all(directory_);
}

bool AttackedDaemon::IsAlive() {
  if (pid_ != 0 && waitpid(pid_, &ended_as_, WNOHANG) == pid_) pid_ = 0;
  return pid_ != 0;
}

uint64_t AttackedDaemon::ResidentBytes() const {
  std::ifstream statm(fmt::format("/proc/{}/statm", pid_));
  uint64_t size = 0;
  uint64_t resident = 0;
  statm >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string AttackedDaemon::Output() const { return Slurp(directory_ + "/output"); }

std::vector<std::string> AttackedDaemon::Segments() const {
  const std::string prefix = SegmentPrefix(job_, 0).substr(1);  // without the slash
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix)) names.push_back("/" + name);
  }
  return names;
}

}  // namespace unreft
