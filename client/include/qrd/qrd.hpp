// SPDX-License-Identifier: Apache-2.0
// C++ over the C API: handles that release themselves, errors as exceptions. Header-only, C++17;
// there is no C++ ABI, so a program keeps working with a later libqrd.so.
//
//   qrd::Communicator comm({.communicator = "tp", .rank = r, .world_size = 4});   // C++20 spelling
//   qrd::Buffer<float> x(comm, 4096);
//   ...
//   qrd::Operation operation = comm.AllReduce(x, QRD_SUM);   // in place
//   qrd_op_stats stats = operation.Wait();
//
// Errors: every function that can fail throws qrd::Error, which has the status and the library's
// text. Code without exceptions uses qrd.h. "Not done yet" is no error: TryWait and WaitFor return
// an empty optional. Thread safety: a Communicator may be used from any thread at the same time; a
// Buffer, a Memory and an Operation from one thread at a time. Ownership: all objects are
// move-only. Memory and operations keep the session alive: it ends when the Communicator and
// everything made from it are gone. An Operation that was not waited for is waited for by its
// destructor, since its buffers may be in use until then; its result is dropped.
#ifndef QRD_QRD_HPP_
#define QRD_QRD_HPP_

#include <qrd/qrd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace qrd {
// Part of the symbols, so that programs built against another version do not mix.
inline namespace cpp0 {

class Error : public std::runtime_error {
 public:
  Error(qrd_status status, const std::string& text)
      : std::runtime_error(std::string(qrd_status_string(status)) + ": " + text), status_(status) {}
  qrd_status status() const noexcept { return status_; }

 private:
  qrd_status status_;
};

// Throws if `status`, the result of the C call just made by this thread, is a failure.
inline void Check(qrd_status status) {
  if (status != QRD_OK) throw Error(status, qrd_last_error());
}

// Bits of a 16-bit float: C++17 has no such types. Specialise DtypeOf for the program's own.
struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

template <typename T>
struct DtypeOf;  // no value: T is not a type that qrd reduces
template <>
struct DtypeOf<float> {
  static constexpr qrd_dtype value = QRD_FP32;
};
template <>
struct DtypeOf<Fp16> {
  static constexpr qrd_dtype value = QRD_FP16;
};
template <>
struct DtypeOf<Bf16> {
  static constexpr qrd_dtype value = QRD_BF16;
};

// See qrd_comm_config. Empty strings and a zero timeout stand for the defaults.
struct Options {
  std::string communicator;
  std::string group;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string runtime_directory;
  std::chrono::milliseconds timeout{0};  // more than an hour is cut
  bool create_if_absent = true;
  // Empty: host memory.
  std::string device;
};

namespace internal {

struct Finalize {
  void operator()(qrd_comm_t comm) const { qrd_comm_finalize(comm); }
};
using Session = std::shared_ptr<qrd_comm>;

// The C API counts in uint32_t, with 0 for "no limit": longer waits are cut, shorter ones rounded
// up.
inline uint32_t TimeoutMs(std::chrono::nanoseconds timeout) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  if (ms < 1) return 1;
  return ms > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(ms);
}

// The C API takes at most an hour there.
inline uint32_t AttachTimeoutMs(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) return 0;
  constexpr std::chrono::milliseconds kMax = std::chrono::hours(1);
  return TimeoutMs(timeout > kMax ? kMax : timeout);
}

}  // namespace internal

// A posted operation.
class Operation {
 public:
  Operation(Operation&& other) noexcept
      : session_(std::move(other.session_)), id_(std::exchange(other.id_, 0)) {}
  Operation& operator=(Operation&& other) noexcept {
    if (this != &other) {
      Drop();
      session_ = std::move(other.session_);
      id_ = std::exchange(other.id_, 0);
    }
    return *this;
  }
  ~Operation() { Drop(); }

  // Waits for the end. Throws if the operation failed; it is released either way. Throws
  // QRD_IN_PROGRESS, and does not release it, if the daemon shows no sign of life for 10 s.
  qrd_op_stats Wait() {
    const std::optional<qrd_op_stats> stats = Finish(0);
    if (!stats) Check(QRD_IN_PROGRESS);
    return *stats;
  }
  // Empty after the timeout: wait again.
  std::optional<qrd_op_stats> WaitFor(std::chrono::nanoseconds timeout) {
    return timeout.count() <= 0 ? TryWait() : Finish(internal::TimeoutMs(timeout));
  }
  // Never blocks. Empty if it is not done.
  std::optional<qrd_op_stats> TryWait() {
    qrd_op_stats stats = QRD_OP_STATS_INIT;
    return Result(qrd_test(session_.get(), id_, &stats), stats);
  }
  // False once a wait has ended.
  bool in_flight() const noexcept { return id_ != 0; }
  qrd_operation id() const noexcept { return id_; }

 private:
  friend class Communicator;
  Operation(internal::Session session, qrd_operation id) : session_(std::move(session)), id_(id) {}

  std::optional<qrd_op_stats> Finish(uint32_t timeout_ms) {
    qrd_op_stats stats = QRD_OP_STATS_INIT;
    return Result(qrd_wait(session_.get(), id_, timeout_ms, &stats), stats);
  }
  std::optional<qrd_op_stats> Result(qrd_status status, const qrd_op_stats& stats) {
    if (status == QRD_IN_PROGRESS) return std::nullopt;
    id_ = 0;
    Check(status);
    return stats;
  }
  void Drop() noexcept {
    if (id_ != 0) qrd_wait(session_.get(), std::exchange(id_, 0), 0, nullptr);
  }

  internal::Session session_;
  qrd_operation id_ = 0;
};

// Memory that the daemon reaches without a copy. See qrd_mem_alloc.
class Memory {
 public:
  Memory(Memory&& other) noexcept
      : session_(std::move(other.session_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    if (this != &other) {
      Drop();
      session_ = std::move(other.session_);
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  // Memory that an operation still uses stays with the session until that ends.
  ~Memory() { Drop(); }

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  friend class Communicator;
  Memory(internal::Session session, void* data, std::size_t bytes)
      : session_(std::move(session)), data_(data), bytes_(bytes) {}
  void Drop() noexcept {
    if (data_ != nullptr) qrd_mem_free(session_.get(), std::exchange(data_, nullptr));
  }

  internal::Session session_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// The caller's own device memory while the daemon may use it. See qrd_mem_import.
class ImportedMemory {
 public:
  ImportedMemory(ImportedMemory&& other) noexcept
      : session_(std::move(other.session_)), data_(std::exchange(other.data_, nullptr)) {}
  ImportedMemory& operator=(ImportedMemory&& other) noexcept {
    if (this != &other) {
      Drop();
      session_ = std::move(other.session_);
      data_ = std::exchange(other.data_, nullptr);
    }
    return *this;
  }
  ~ImportedMemory() { Drop(); }

  void* data() const noexcept { return data_; }

 private:
  friend class Communicator;
  ImportedMemory(internal::Session session, void* data)
      : session_(std::move(session)), data_(data) {}
  void Drop() noexcept {
    if (data_ != nullptr) qrd_mem_release(session_.get(), std::exchange(data_, nullptr));
  }

  internal::Session session_;
  void* data_ = nullptr;
};

// What operations on streams have come to. See qrd_stream_stats.
struct StreamStats {
  uint64_t operations = 0;
  qrd_op_stats last = QRD_OP_STATS_INIT;
};

template <typename T>
class Buffer;

// One rank's session.
class Communicator {
 public:
  explicit Communicator(const Options& options) {
    qrd_comm_config config = QRD_COMM_CONFIG_INIT;
    config.communicator = options.communicator.c_str();
    config.group = options.group.empty() ? nullptr : options.group.c_str();
    config.rank = options.rank;
    config.world_size = options.world_size;
    config.runtime_directory =
        options.runtime_directory.empty() ? nullptr : options.runtime_directory.c_str();
    config.timeout_ms = internal::AttachTimeoutMs(options.timeout);
    config.create_if_absent = options.create_if_absent ? 1 : 0;
    config.device = options.device.empty() ? nullptr : options.device.c_str();
    qrd_comm_t comm = nullptr;
    Check(qrd_comm_init(&config, &comm));
    session_ = internal::Session(comm, internal::Finalize{});
    rank_ = options.rank;
    world_size_ = options.world_size;
  }

  uint32_t rank() const noexcept { return rank_; }
  uint32_t world_size() const noexcept { return world_size_; }
  // For C functions; do not finalize it.
  qrd_comm_t handle() const noexcept { return session_.get(); }

  Memory Allocate(std::size_t bytes) {
    void* data = nullptr;
    Check(qrd_mem_alloc(session_.get(), bytes, &data));
    return Memory(session_, data, bytes);
  }

  // Fails every operation of the whole group. May be called while another thread waits.
  void Abort(const std::string& reason = "") {
    Check(qrd_comm_abort(session_.get(), reason.c_str()));
  }

  // Any memory: what is not from Allocate or a Buffer is copied.
  template <typename T>
  Operation AllReduce(const T* input, T* output, std::size_t count, qrd_reduce_op op) {
    return AllReduce(input, output, count, DtypeOf<T>::value, op);
  }
  Operation AllReduce(const void* input, void* output, std::size_t count, qrd_dtype dtype,
                      qrd_reduce_op op) {
    qrd_operation operation = 0;
    Check(qrd_all_reduce(session_.get(), input, output, count, dtype, op, &operation));
    return Operation(session_, operation);
  }
  // The whole buffer, in place.
  template <typename T>
  Operation AllReduce(Buffer<T>& buffer, qrd_reduce_op op) {
    return AllReduce(buffer.data(), buffer.data(), buffer.size(), op);
  }

  // With residual, RMSNorm and FP8, see qrd_all_reduce_rms_norm.
  Operation AllReduceRmsNorm(const void* input, qrd_dtype dtype, const qrd_rms_norm& norm) {
    qrd_operation operation = 0;
    Check(qrd_all_reduce_rms_norm(session_.get(), input, dtype, &norm, &operation));
    return Operation(session_, operation);
  }
  // The rows that this rank has with QRD_RESIDUAL_SHARDED.
  struct Rows {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  Rows OwnedRows(uint64_t tokens) const {
    Rows rows;
    Check(qrd_owned_rows(session_.get(), tokens, &rows.first, &rows.count));
    return rows;
  }
  void AllReduceRmsNormOnStream(const void* input, qrd_dtype dtype, const qrd_rms_norm& norm,
                                void* stream) {
    Check(qrd_all_reduce_rms_norm_on_stream(session_.get(), input, dtype, &norm, stream));
  }

  // In the order of a stream, see qrd_all_reduce_on_stream. Ask CheckStreams before the results are
  // used.
  template <typename T>
  void AllReduceOnStream(const T* input, T* output, std::size_t count, qrd_reduce_op op,
                         void* stream) {
    AllReduceOnStream(input, output, count, DtypeOf<T>::value, op, stream);
  }
  void AllReduceOnStream(const void* input, void* output, std::size_t count, qrd_dtype dtype,
                         qrd_reduce_op op, void* stream) {
    Check(qrd_all_reduce_on_stream(session_.get(), input, output, count, dtype, op, stream));
  }
  // Throws the first failure of an operation on a stream, or the loss of the daemon.
  void CheckStreams() {
    qrd_status failed = QRD_OK;
    Check(qrd_comm_async_error(session_.get(), &failed, nullptr));
    Check(failed);
  }
  qrd::StreamStats StreamStats() {
    qrd::StreamStats stats;
    Check(qrd_stream_stats(session_.get(), &stats.operations, &stats.last));
    return stats;
  }
  // Device memory of the caller, which must outlive the result.
  ImportedMemory Import(void* ptr, std::size_t bytes) {
    Check(qrd_mem_import(session_.get(), ptr, bytes));
    return ImportedMemory(session_, ptr);
  }

 private:
  internal::Session session_;
  uint32_t rank_ = 0;
  uint32_t world_size_ = 0;
};

// Zeroed elements in memory of a communicator; 1 element or more.
template <typename T>
class Buffer {
 public:
  Buffer(Communicator& comm, std::size_t count)
      : memory_(comm.Allocate(Bytes(count))), count_(count) {}

  T* data() const noexcept { return static_cast<T*>(memory_.data()); }
  std::size_t size() const noexcept { return count_; }
  T* begin() const noexcept { return data(); }
  T* end() const noexcept { return data() + count_; }
  T& operator[](std::size_t i) const noexcept { return data()[i]; }

 private:
  static std::size_t Bytes(std::size_t count) {
    if (count > SIZE_MAX / sizeof(T)) {
      throw Error(QRD_INVALID_ARGUMENT,
                  "count: " + std::to_string(count) + " elements overflow size_t");
    }
    return count * sizeof(T);
  }

  Memory memory_;
  std::size_t count_;
};

}  // namespace cpp0
}  // namespace qrd

#endif  // QRD_QRD_HPP_
