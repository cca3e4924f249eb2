// What is peculiar to the real channel: the file, the kernel's word on peers, strangers' bytes.
#include "base/unix_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/framing.h"
#include "base/unix_connector.h"
#include "base/unix_listener.h"
#include "base/unix_socket.h"
#include "tests/conformance/world.h"
#include "tests/fakes/child_process.h"
#include "tests/fakes/no_descriptors.h"

namespace unreft {
namespace {

using ::testing::HasSubstr;

class UnixChannelTest : public testing::Test {
 protected:
  UnixChannelTest() {
    directory_ = testing::TempDir() + "unreft_unix_XXXXXX";
    UNREFT_CHECK(mkdtemp(directory_.data()) != nullptr);
    path_ = directory_ + "/socket";
  }
  ~UnixChannelTest() override {
    channel_.reset();
    listener_.reset();
    std::filesystem::remove_all(directory_);
  }

  absl::Status Listen() {
    auto listener = UnixListener::Create(world_.asio(), path_, {},
                                         [this](PeerIdentity peer) { refused_.push_back(peer); });
    if (!listener.ok()) return listener.status();
    listener_ = std::move(*listener);
    listener_->Start([this](std::unique_ptr<Channel> channel, PeerIdentity peer) {
      if (throws_on_accept_) throw std::runtime_error("no memory");
      peer_ = peer;
      channel_ = std::move(channel);
      channel_->Start([this](Frame frame) { on_frame_(std::move(frame)); },
                      [this](absl::Status status) { close_ = std::move(status); });
    });
    return absl::OkStatus();
  }

  // A stranger that knows nothing of frames, connected and accepted.
  UniqueFd ConnectStranger() {
    EXPECT_TRUE(Listen().ok());
    auto fd = ConnectUnixSocket(path_);
    UNREFT_CHECK(fd.ok(), "{}", fd.status().ToString());
    EXPECT_TRUE(world_.RunUntil([&] { return channel_ != nullptr; }));
    return std::move(*fd);
  }

  static void Write(const UniqueFd& fd, std::string_view bytes) {
    EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  // The peer's end of a closed channel gives nothing, or the kernel's word that it is gone.
  static bool SeesTheEnd(const UniqueFd& fd) {
    char byte;
    const ssize_t count = recv(fd.get(), &byte, 1, 0);
    return count == 0 || (count < 0 && errno == ECONNRESET);
  }

  absl::Status ClosedBecause() {
    EXPECT_TRUE(world_.RunUntil([&] { return close_.has_value(); }));
    return close_.value_or(absl::OkStatus());
  }

  AsioWorld world_;
  std::string directory_;
  std::string path_;
  std::unique_ptr<UnixListener> listener_;
  std::vector<PeerIdentity> refused_;
  std::optional<PeerIdentity> peer_;
  std::unique_ptr<Channel> channel_;
  std::vector<Frame> frames_;
  std::function<void(Frame)> on_frame_ = [this](Frame frame) {
    frames_.push_back(std::move(frame));
  };
  bool throws_on_accept_ = false;
  std::optional<absl::Status> close_;
};

TEST_F(UnixChannelTest, OnlyTheOwnerMayOpenTheSocketFile) {
  ASSERT_TRUE(Listen().ok());
  struct stat info{};
  ASSERT_EQ(lstat(path_.c_str(), &info), 0);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(UnixChannelTest, RemovesItsSocketFile) {
  ASSERT_TRUE(Listen().ok());
  listener_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixChannelTest, LeavesTheSocketFileOfAnother) {
  ASSERT_TRUE(Listen().ok());
  auto first = std::move(listener_);
  std::filesystem::remove(path_);
  ASSERT_TRUE(Listen().ok());
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_TRUE(ConnectUnixSocket(path_).ok());
}

TEST_F(UnixChannelTest, ReplacesWhatADeadProcessLeft) {
  {
    const auto address = UnixAddress(path_);
    const auto fd = NewUnixSocket();
    ASSERT_EQ(bind(fd->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  EXPECT_EQ(Listen(), absl::OkStatus());
  EXPECT_TRUE(ConnectUnixSocket(path_).ok());
}

TEST_F(UnixChannelTest, DoesNotReplaceAFileThatIsNoSocket) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(Listen().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(std::filesystem::file_size(path_), 8U);
}

TEST_F(UnixChannelTest, NamesAPathThatIsTooLong) {
  path_ = directory_ + "/" + std::string(200, 'x');
  const absl::Status status = Listen();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit is 107"));
  EXPECT_EQ(ConnectUnixSocket(path_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(UnixChannelTest, NamesADirectoryThatIsMissing) {
  path_ = directory_ + "/missing/socket";
  EXPECT_THAT(std::string(Listen().message()), HasSubstr(path_));
}

TEST_F(UnixChannelTest, InheritsNoDescriptorToOtherPrograms) {
  const UniqueFd stranger = ConnectStranger();
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with("socket:")) continue;
    const int fd = std::stoi(entry.path().filename());
    struct stat info{};
    int type = 0;
    socklen_t size = sizeof(type);
    if (fstat(fd, &info) != 0 || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &type, &size) != 0) continue;
    if (fd <= STDERR_FILENO || type != AF_UNIX) continue;
    ++sockets;
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0) << target;
  }
  EXPECT_GE(sockets, 3);  // listening, accepted, connected
}

TEST_F(UnixChannelTest, ClosesOnAStrangersBytes) {
  const UniqueFd stranger = ConnectStranger();
  Write(stranger, "GET / HTTP/1.1\r\nHost: somebody\r\n\r\n");
  const absl::Status why = ClosedBecause();
  EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(why.message()), HasSubstr("UNRF"));
  EXPECT_TRUE(SeesTheEnd(stranger));
  EXPECT_TRUE(frames_.empty());
}

TEST_F(UnixChannelTest, ClosesOnAFrameForNewerReaders) {
  const UniqueFd stranger = ConnectStranger();
  const FrameHeader good = EncodeFrameHeader({.type = 1});
  std::string bytes(reinterpret_cast<const char*>(good.data()), good.size());
  bytes += bytes;
  bytes[kFrameHeaderBytes + 6] = 9;  // min_reader of the second frame
  Write(stranger, bytes);
  const absl::Status why = ClosedBecause();
  EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(why.message()), HasSubstr("needs a reader of format 9"));
  EXPECT_EQ(frames_.size(), 1U);  // the first was whole
  channel_->Send({.type = 1});    // into nothing
  world_.Settle();
}

TEST_F(UnixChannelTest, SaysThatAFrameWasCutShort) {
  {
    const UniqueFd stranger = ConnectStranger();
    Write(stranger, "UNRF");
  }
  const absl::Status why = ClosedBecause();
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(why.message()), HasSubstr("within a frame"));
}

// Dying of SIGPIPE would fail the test by itself.
TEST_F(UnixChannelTest, SurvivesSendingToNobody) {
  UniqueFd stranger = ConnectStranger();
  world_.InTurn([&] {
    stranger = UniqueFd();
    for (int i = 0; i < 3; ++i) channel_->Send({.payload = "anybody?"});
  });
  EXPECT_EQ(ClosedBecause().code(), absl::StatusCode::kUnavailable);
}

TEST_F(UnixChannelTest, WaitsForAPeerThatReadsSlowly) {
  const UniqueFd stranger = ConnectStranger();
  const Frame frame{.type = 3, .payload = std::string(size_t{3} << 20, 's')};
  world_.InTurn([&] { channel_->Send(frame); });
  FrameDecoder decoder(size_t{4} << 20);
  std::optional<Frame> received;
  std::vector<std::byte> buffer(1000);
  ASSERT_TRUE(world_.RunUntil([&] {
    // Some, then a turn of the sender, and so on.
    world_.asio().Post([] {});
    for (int i = 0; i < 100; ++i) {
      const ssize_t count = recv(stranger.get(), buffer.data(), buffer.size(), 0);
      if (count <= 0) break;
      auto bytes = std::span<const std::byte>(buffer).first(static_cast<size_t>(count));
      auto next = decoder.Next(bytes);
      if (!next.ok()) ADD_FAILURE() << next.status();
      if (next.ok() && next->has_value()) received = std::move(**next);
    }
    return received.has_value();
  }));
  EXPECT_TRUE(received->payload == frame.payload);
}

TEST_F(UnixChannelTest, SeesAPeerKilled) {
  ASSERT_TRUE(Listen().ok());
  const auto address = UnixAddress(path_);
  ChildProcess child([&] {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    (void)!connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address));
  });
  ASSERT_TRUE(world_.RunUntil([&] { return channel_ != nullptr; }));
  EXPECT_EQ(peer_->pid, child.pid());
  child.Kill();
  EXPECT_EQ(ClosedBecause().code(), absl::StatusCode::kUnavailable);
  if (peer_->pidfd != nullptr) {  // from Linux 6.5 on
    pollfd ended{.fd = peer_->pidfd->get(), .events = POLLIN};
    EXPECT_EQ(poll(&ended, 1, 0), 1);
  }
}

TEST_F(UnixChannelTest, WelcomesItsUserAndRootOnly) {
  EXPECT_TRUE(PeerIsWelcome({.uid = 1000}, 1000));
  EXPECT_TRUE(PeerIsWelcome({.uid = 0}, 1000));
  EXPECT_TRUE(PeerIsWelcome({.uid = 0}, 0));
  EXPECT_FALSE(PeerIsWelcome({.uid = 1001}, 1000));
  EXPECT_FALSE(PeerIsWelcome({.uid = 1000}, 0));
}

TEST_F(UnixChannelTest, RefusesAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can take another uid";
  ASSERT_TRUE(Listen().ok());
  // Opened wide by mistake: the credentials still tell.
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  const auto address = UnixAddress(path_);
  constexpr uid_t kNobody = 65534;
  ChildProcess child([&] {
    syscall(SYS_setuid, kNobody);  // of this thread: the library's would look for others
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    (void)!connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address));
  });
  ASSERT_TRUE(world_.RunUntil([&] { return !refused_.empty(); }));
  EXPECT_EQ(refused_[0].uid, kNobody);
  EXPECT_EQ(refused_[0].pid, child.pid());
  EXPECT_EQ(channel_, nullptr);
  // And goes on serving others.
  EXPECT_TRUE(ConnectUnixSocket(path_).ok());
  EXPECT_TRUE(world_.RunUntil([&] { return channel_ != nullptr; }));
}

// Who made the directory first could put a socket of its own there, and what it says be believed.
TEST_F(UnixChannelTest, TrustsNoDaemonOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can take another uid";
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  const auto address = UnixAddress(path_);
  ChildProcess child([&] {
    syscall(SYS_setuid, 65534);  // of this thread: the library's would look for others
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    (void)!bind(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address));
    (void)!listen(fd, 8);
  });
  ASSERT_TRUE(world_.RunUntil([&] {
    world_.asio().Post([] {});
    return ConnectUnixSocket(path_).ok();
  }));
  UnixConnector connector(world_.asio(), path_);
  std::optional<absl::Status> status;
  connector.Connect([&](auto channel) { status = channel.status(); });
  ASSERT_TRUE(world_.RunUntil([&] { return status.has_value(); }));
  EXPECT_TRUE(absl::IsPermissionDenied(*status)) << *status;
  EXPECT_THAT(std::string(status->message()), HasSubstr("served by user 65534, needed user 0"));
}

// It took no more frames and stayed open: its peer waited for an answer for ever.
TEST_F(UnixChannelTest, AFrameWhoseHandlerThrowsClosesTheChannel) {
  on_frame_ = [](const Frame&) { throw std::runtime_error("no memory"); };
  const UniqueFd stranger = ConnectStranger();
  const FrameHeader frame = EncodeFrameHeader({.type = 1});
  Write(stranger, std::string(reinterpret_cast<const char*>(frame.data()), frame.size()));
  EXPECT_THROW(world_.RunUntil([&] { return close_.has_value(); }), std::runtime_error);
  EXPECT_TRUE(SeesTheEnd(stranger));
  EXPECT_TRUE(absl::IsUnavailable(ClosedBecause()));
}

TEST_F(UnixChannelTest, AFrameWhoseHandlerDestroysTheChannelAndThrowsIsTheLast) {
  on_frame_ = [this](const Frame&) {
    channel_.reset();
    throw std::runtime_error("no memory");
  };
  const UniqueFd stranger = ConnectStranger();
  const FrameHeader frame = EncodeFrameHeader({.type = 1});
  Write(stranger, std::string(reinterpret_cast<const char*>(frame.data()), frame.size()));
  EXPECT_THROW(world_.RunUntil([&] { return channel_ == nullptr; }), std::runtime_error);
  EXPECT_TRUE(SeesTheEnd(stranger));
  world_.Settle();
  EXPECT_FALSE(close_.has_value()) << "its owner knows";
}

// Nobody was let in any more.
TEST_F(UnixChannelTest, AcceptsOthersAfterAHandlerHasThrown) {
  ASSERT_TRUE(Listen().ok());
  throws_on_accept_ = true;
  const auto first = ConnectUnixSocket(path_);
  ASSERT_TRUE(first.ok());
  EXPECT_THROW(world_.RunUntil([&] { return channel_ != nullptr; }), std::runtime_error);
  EXPECT_TRUE(SeesTheEnd(*first));
  throws_on_accept_ = false;
  const auto second = ConnectUnixSocket(path_);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(world_.RunUntil([&] { return channel_ != nullptr; }));
}

TEST_F(UnixChannelTest, AcceptsAgainWhenThereAreDescriptorsAgain) {
  ASSERT_TRUE(Listen().ok());
  const auto stranger = ConnectUnixSocket(path_);
  ASSERT_TRUE(stranger.ok());
  {
    NoDescriptors none;
    world_.Settle();
    EXPECT_EQ(channel_, nullptr);
  }
  EXPECT_TRUE(world_.RunUntil([&] { return channel_ != nullptr; }));
}

}  // namespace
}  // namespace unreft
