// AttackedDaemon: a real unreftd of its own job, which has to outlive whatever a test does to it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace unreft {

// The binary is that of UNREFT_BIN_DIR, so that a build with sanitizers attacks one with them.
class AttackedDaemon {
 public:
  // Returns when it serves at that socket of its run directory. `options` are words of its command
  // line; `job` is its own if none is given.
  explicit AttackedDaemon(const std::vector<std::string>& options = {},
                          const std::string& socket = "unreftd.sock", std::string job = "");
  // Ends it and removes what it had in the file system and in shared memory. A failure of the test
  // if it had ended before, or says on its way out that a sanitizer found something.
  ~AttackedDaemon();
  AttackedDaemon(const AttackedDaemon&) = delete;
  AttackedDaemon& operator=(const AttackedDaemon&) = delete;

  const std::string& job() const { return job_; }
  const std::string& socket() const { return socket_; }
  std::string run_dir() const { return directory_ + "/run"; }
  pid_t pid() const { return pid_; }

  bool IsAlive();
  uint64_t ResidentBytes() const;
  // What it has logged and said.
  std::string Output() const;
  // Names of its segments of shared memory, as shm_open takes them.
  std::vector<std::string> Segments() const;

 private:
  std::string job_;
  std::string directory_;
  std::string socket_;
  pid_t pid_ = 0;
  int ended_as_ = -1;  // its wait status
};

}  // namespace unreft
