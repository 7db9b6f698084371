//! Instruction sets: found once at start, chosen per kernel call through [`Isa::run`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

pub use portable::bf16_bits;

use crate::lanes::Lanes;

/// Work written over [`Lanes`]. `run` must be `#[inline(always)]`, as must every generic function it calls: that is how
/// the code is compiled with the instruction set's features.
pub trait Kernel {
    /// What it returns.
    type Out;
    /// Does the work.
    fn run<L: Lanes>(self) -> Self::Out;
}

/// An instruction set this process can use. Only detection makes one, so that holding it proves the machine has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Plain Rust.
    Portable,
    /// AVX2, FMA, F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F/BW/DQ/VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// Every instruction set this machine has, the best last.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "no vector set is known for other architectures")]
        let mut found = vec![Isa(Kind::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            if avx2 {
                found.push(Isa(Kind::Avx2));
            }
            if avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                found.push(Isa(Kind::Avx512));
            }
        }
        #[cfg(target_arch = "aarch64")]
        found.push(Isa(Kind::Neon)); // part of the base architecture
        found
    }

    /// The best instruction set of this machine.
    pub fn best() -> Isa {
        *Isa::available().last().expect("portable is always there")
    }

    /// Name for reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512-vnni",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
        }
    }

    /// Runs a kernel compiled for this instruction set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.0 {
            Kind::Portable => kernel.run::<portable::Portable>(),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn call<K: Kernel>(kernel: K) -> K::Out {
                    kernel.run::<avx2::Avx2>()
                }
                // SAFETY: an Isa other than Portable comes from `available`, which detected these features.
                unsafe { call(kernel) }
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => {
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
                fn call<K: Kernel>(kernel: K) -> K::Out {
                    kernel.run::<avx512::Avx512>()
                }
                // SAFETY: as above.
                unsafe { call(kernel) }
            }
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => kernel.run::<neon::Neon>(),
        }
    }
}
