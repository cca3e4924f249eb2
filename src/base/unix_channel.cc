#include "base/unix_channel.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/fork_guard.h"
#include "base/framing.h"

namespace unreft {
namespace {

using Descriptor = boost::asio::posix::stream_descriptor;

constexpr size_t kReadBytes = size_t{64} << 10;  // taken from the kernel in one turn
constexpr size_t kPiecesMax = 64;                // given to the kernel in one call

}  // namespace

// The socket and what flows through it. Outlives its channel until the handlers under way are gone,
// silently.
class UnixChannel::Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(AsioExecutor& executor, UniqueFd socket, const UnixChannelOptions& options)
      : executor_(executor),
        options_(options),
        socket_(executor.context(), socket.Release()),
        closed_in_children_(socket_.native_handle()),
        decoder_(options.frame_bytes_max) {}

  void Start(OnFrame on_frame, OnClose on_close) {
    UNREFT_CHECK(!std::exchange(started_, true), "a channel is started once");
    if (silent_) return;
    on_close_ = std::move(on_close);
    if (!open_) return;
    on_frame_ = std::move(on_frame);
    read_buffer_.resize(kReadBytes);
    AwaitInput();
  }

  void Send(Frame frame) {
    if (!open_ || peer_gone_) return;
    const absl::Status refused = CheckSend(frame);
    if (!refused.ok()) return Fail(refused);
    queue_bytes_ += kFrameHeaderBytes + frame.payload.size();
    queue_.push_back({EncodeFrameHeader(frame), std::move(frame.payload)});
    if (!awaiting_room_) Flush();
  }

  void Close() {
    silent_ = true;
    const auto on_close = std::exchange(on_close_, nullptr);
    if (!open_) return;
    Flush();
    Shut();
  }

 private:
  struct Outgoing {
    FrameHeader header;
    std::string payload;
    size_t size() const { return header.size() + payload.size(); }
  };

  absl::Status CheckSend(const Frame& frame) const {
    const size_t bytes = frame.payload.size();
    if (bytes > options_.frame_bytes_max) {
      return absl::InvalidArgumentError(
          fmt::format("a frame of type {} has {} payload bytes, frame_bytes_max is {}", frame.type,
                      bytes, options_.frame_bytes_max));
    }
    if (queue_bytes_ + kFrameHeaderBytes + bytes > options_.send_queue_bytes_max) {
      return absl::ResourceExhaustedError(
          fmt::format("{} bytes wait to be sent, {} more pass send_queue_bytes_max of {}",
                      queue_bytes_, kFrameHeaderBytes + bytes, options_.send_queue_bytes_max));
    }
    return absl::OkStatus();
  }

  void AwaitInput() {
    socket_.async_wait(Descriptor::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         if (!error && self->open_) self->Read();
                       });
  }

  void Read() {
    const ssize_t count =
        recv(socket_.native_handle(), read_buffer_.data(), read_buffer_.size(), MSG_DONTWAIT);
    if (count > 0) return TakeInput(std::span(read_buffer_).first(static_cast<size_t>(count)));
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return AwaitInput();
    const std::string why =
        count == 0 ? "closed the channel" : fmt::format("is gone, errno {}", errno);
    Fail(absl::UnavailableError(
        fmt::format("the peer {}{}", why, decoder_.at_boundary() ? "" : " within a frame")));
  }

  // What a frame asked for is not done if its handler throws: the peer is to see that nothing
  // follows, and whoever runs the turns gets the error.
  void TakeInput(std::span<const std::byte> bytes) {
    try {
      HandOut(bytes);
    } catch (...) {
      if (open_) Fail(absl::UnavailableError("a frame was not taken: its turn ended in an error"));
      throw;
    }
  }

  void HandOut(std::span<const std::byte> bytes) {
    while (true) {
      auto frame = decoder_.Next(bytes);
      if (!frame.ok()) return Fail(frame.status());
      if (!frame->has_value()) return AwaitInput();
      // Out of the stream while it runs, since it may destroy the channel.
      auto on_frame = std::exchange(on_frame_, nullptr);
      on_frame(std::move(**frame));
      if (!open_) return;
      on_frame_ = std::move(on_frame);
    }
  }

  // Gives the kernel what it takes without delay, and the rest when there is room again.
  void Flush() {
    while (!queue_.empty()) {
      const ssize_t count = SendSome();
      if (count >= 0) {
        Forget(static_cast<size_t>(count));
      } else if (errno == EAGAIN) {
        return AwaitRoom();
      } else if (errno != EINTR) {
        return LosePeer();
      }
    }
  }

  ssize_t SendSome() {
    std::vector<iovec> pieces;
    size_t skip = front_sent_;
    const auto add = [&](const void* data, size_t size) {
      const size_t skipped = std::min(skip, size);
      skip -= skipped;
      if (skipped == size) return;
      auto* rest = const_cast<char*>(static_cast<const char*>(data)) + skipped;  // only read
      pieces.push_back({.iov_base = rest, .iov_len = size - skipped});
    };
    for (const Outgoing& frame : queue_) {
      if (pieces.size() + 2 > kPiecesMax) break;
      add(frame.header.data(), frame.header.size());
      add(frame.payload.data(), frame.payload.size());
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    return sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // `count` more bytes of the queue's front are the kernel's.
  void Forget(size_t count) {
    queue_bytes_ -= count;
    front_sent_ += count;
    while (!queue_.empty() && front_sent_ >= queue_.front().size()) {
      front_sent_ -= queue_.front().size();
      queue_.pop_front();
    }
  }

  void AwaitRoom() {
    awaiting_room_ = true;
    socket_.async_wait(Descriptor::wait_write,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         if (error || !self->open_) return;
                         self->awaiting_room_ = false;
                         self->Flush();
                       });
  }

  // Nobody takes our bytes any more, but theirs that have arrived are still to be read: after the
  // shutdown reading gives them, then the end.
  void LosePeer() {
    peer_gone_ = true;
    queue_.clear();
    shutdown(socket_.native_handle(), SHUT_RDWR);
  }

  // Closes, and says why in a later turn.
  void Fail(absl::Status why) {
    Shut();
    executor_.Post([self = shared_from_this(), why = std::move(why)] {
      auto on_close = std::exchange(self->on_close_, nullptr);
      if (on_close) on_close(why);
    });
  }

  void Shut() {
    open_ = false;
    const auto on_frame = std::exchange(on_frame_, nullptr);
    queue_.clear();
    const ForkGuard no_fork;
    closed_in_children_.reset();
    const UniqueFd closed(socket_.release());  // which cancels what waits for it
  }

  AsioExecutor& executor_;
  const UnixChannelOptions options_;
  Descriptor socket_;
  std::optional<ClosedInChildren> closed_in_children_;
  bool open_ = true;     // the socket is
  bool silent_ = false;  // closed by its owner
  bool started_ = false;
  bool peer_gone_ = false;  // it takes no more bytes
  OnFrame on_frame_;
  OnClose on_close_;
  FrameDecoder decoder_;
  std::vector<std::byte> read_buffer_;
  std::deque<Outgoing> queue_;
  size_t front_sent_ = 0;   // of the queue's front
  size_t queue_bytes_ = 0;  // of the queue, less front_sent_
  bool awaiting_room_ = false;
};

UnixChannel::UnixChannel(AsioExecutor& executor, UniqueFd socket, const UnixChannelOptions& options)
    : stream_(std::make_shared<Stream>(executor, std::move(socket), options)) {}

UnixChannel::~UnixChannel() { stream_->Close(); }

void UnixChannel::Start(OnFrame on_frame, OnClose on_close) {
  stream_->Start(std::move(on_frame), std::move(on_close));
}

void UnixChannel::Send(Frame frame) { stream_->Send(std::move(frame)); }

void UnixChannel::Close() { stream_->Close(); }

}  // namespace unreft
